// The gradient of theta. Of an angle a = theta p at position p it is
//   d_a = y1 (d_o2 cos a - d_o1 sin a) - y2 (d_o1 cos a + d_o2 sin a),
// where a cosine has no y2, and theta gets p d_a, summed over batch entries, tokens, the heads and
// the features that share it. A task is a head and a part of the tokens: cos and sin of a token are
// found once for all batch entries, x and d_o are read once, and each angle has a sum of its own.
// Then the sums of parts, heads and features are added in order.
//
// Terms grow with the position and mostly cancel, while the sum runs over all rows of a batch: in
// f32 its rounding would show. The sums are in f64, which costs one conversion and one multiply-add
// an angle beside the loads that bound it.
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/workspace.h"
#include "row_transform.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

template <class T>
class ThetaGradient {
 public:
  ThetaGradient(const View& x, const View& d_o, const View& angles, const RowTransform& transform,
                std::int64_t columns, double* sums)
      : x_(x),
        d_o_(d_o),
        encoder_(transform, x.size(3)),
        source_(angles, encoder_, x.size(2)),
        rotates_(transform.kind == LrpeKind::rotate),
        on_grid_(!transform.grid.empty()),
        columns_(columns),
        parts_(lrpe_theta_parts(x.size(1), x.size(2))),
        sums_(sums) {}

  /// Fills the sums, (heads, parts, angles).
  void run() const {
    const std::int64_t n = encoder_.angles(), tokens = x_.size(2);
    parallel_for(x_.size(1) * parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      Buffers buffers;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / parts_, part = i % parts_;
        std::fill_n(sums_ + i * n, n, 0.0);
        for (std::int64_t t = tokens * part / parts_; t < tokens * (part + 1) / parts_; ++t) {
          add_token(buffers, head, t, sums_ + i * n);
        }
      }
    });
  }

  /// d_theta (=|+=) the sums of what shares a row and a column of it.
  void finish(const Grad& d_theta) const {
    const View& to = d_theta.view;
    const std::int64_t n = encoder_.angles(), rows = to.size(0),
                       groups = x_.size(1) * parts_ / rows;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < to.size(1); ++k) {
        const std::int64_t last = k < columns_ ? (on_grid_ || columns_ == 1 ? n : k + 1) : 0;
        double sum = 0;
        for (std::int64_t g = r * groups; g < (r + 1) * groups; ++g) {
          for (std::int64_t i = k; i < last; i += columns_) sum += sums_[g * n + i];
        }
        finish_row(d_theta, r * to.stride(0) + k * to.stride(1), 1, &sum, 1);
      }
    }
  }

 private:
  static constexpr std::int64_t longest = most_features(dtype_of<T>);
  struct Buffers {
    alignas(64) T cos[longest], sin[longest], row[longest], wide[2 * longest];
  };

  void add_token(Buffers& buffers, std::int64_t head, std::int64_t token, double* sums) const {
    const std::int64_t n = encoder_.angles();
    find_turns(source_.get(Angles::read, head, token, buffers.row), buffers.cos, buffers.sin, n);
    const auto offset = [&](const View& v, std::int64_t b) {
      return b * v.stride(0) + head * v.stride(1) + token * v.stride(2);
    };
    for (std::int64_t b = 0; b < x_.size(0); ++b) {
      const T* d_o = read_row(buffers.wide, d_o_, offset(d_o_, b), d_o_.stride(3), 2 * n);
      const T* x = read_row(buffers.row, x_, offset(x_, b), x_.stride(3), encoder_.features());
      const T* y = encoder_.activate(x, {}, buffers.row);
      encoder_.for_each_position(
          token, columns_, [&](std::int64_t first, std::int64_t count, std::int64_t position) {
            const auto add = rotates_ ? add_rotated : add_cosine;
            add(y + first, d_o + first, buffers.cos + first, buffers.sin + first,
                static_cast<double>(position), sums + first, count, n);
          });
    }
  }

  static void add_rotated(const T* y, const T* d_o, const T* cos, const T* sin, double position,
                          double* sums, std::int64_t count, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) {
      const T a = d_o[i], b = d_o[n + i];
      const T d = y[i] * (b * cos[i] - a * sin[i]) - y[n + i] * (a * cos[i] + b * sin[i]);
      sums[i] += position * static_cast<double>(d);
    }
  }
  static void add_cosine(const T* y, const T* d_o, const T* cos, const T* sin, double position,
                         double* sums, std::int64_t count, std::int64_t n) {
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) {
      const T d = y[i] * (d_o[n + i] * cos[i] - d_o[i] * sin[i]);
      sums[i] += position * static_cast<double>(d);
    }
  }

  const View &x_, &d_o_;
  RowEncoder<T> encoder_;
  AngleSource<T> source_;
  bool rotates_, on_grid_;
  std::int64_t columns_, parts_;
  double* sums_;
};

void theta(View x, View d_o, Grad d_theta, View angles, const RowTransform& transform, View sums) {
  if (!any_elements(d_theta)) return;
  const auto run = [&]<class T>(T) {
    const std::int64_t columns = columns_for(d_theta.view, x.size(3)).size(1);
    const ThetaGradient<T> gradient(x, d_o, angles, transform, columns, sums.as<double>());
    gradient.run();
    gradient.finish(d_theta);
  };
  x.dtype == f64 ? run(0.0) : run(0.0f);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_lrpe_theta() {
  lrpe_theta_kernel.provide(Variant::cpu, on_cpu::theta);
}

}  // namespace quipu::detail
