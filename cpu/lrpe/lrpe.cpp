// Position encodings. Rows (head, token) are cut into blocks, in the order in which they lie in
// memory; cos and sin of a block are found once, stay in the first-level cache, and serve every
// batch entry. So each row is read once and written once, and memory bounds it.
//
// Softmax over the sequence goes another way: see sequence.h.
#include "quipu/core/threads/parallel.h"
#include "sequence.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// Rows of a block: their sin/cos table takes 16 KiB in f32.
std::int64_t block_rows(std::int64_t angles) {
  return std::clamp<std::int64_t>(2048 / std::max<std::int64_t>(angles, 1), 1, 64);
}

template <class T>
class Encoding {
 public:
  Encoding(const View& x, const View& angles, const RowTransform& transform, std::int64_t features)
      : encoder_(transform, features),
        source_(angles, encoder_, x.size(2)),
        batch_(x.size(0)),
        heads_(x.size(1)),
        tokens_(x.size(2)),
        heads_inside_(std::abs(x.stride(1)) < std::abs(x.stride(2))) {}

 protected:
  static constexpr std::int64_t longest = most_features(dtype_of<T>);
  struct Place {
    std::int64_t head, token;
  };
  struct Buffers {
    alignas(64) T cos[longest], sin[longest];  // of a block
    alignas(64) T row[longest], spare[longest], wide[2 * longest];
  };

  std::int64_t offset(const View& v, std::int64_t b, const Place& p) const {
    return b * v.stride(0) + p.head * v.stride(1) + p.token * v.stride(2);
  }

  /// Calls f(buffers, b, place, cos, sin) for all rows.
  template <class F>
  void for_each_row(Angles how, F f) const {
    const std::int64_t n = encoder_.angles(), block = block_rows(n);
    const std::int64_t several = std::max<std::int64_t>(1, 8 / batch_);
    parallel_for(heads_ * tokens_, block * several, [&](std::int64_t begin, std::int64_t end) {
      Buffers buffers;
      for (std::int64_t first = begin; first < end; first += block) {
        const std::int64_t last = std::min(first + block, end);
        for (std::int64_t r = first; r < last; ++r) {
          const std::int64_t turn = (r - first) * n;
          const auto [head, token] = place(r);
          const T* angle = source_.get(how, head, token, buffers.row);
          find_turns(angle, buffers.cos + turn, buffers.sin + turn, n);
        }
        for (std::int64_t b = 0; b < batch_; ++b) {
          for (std::int64_t r = first; r < last; ++r) {
            const std::int64_t turn = (r - first) * n;
            f(buffers, b, place(r), buffers.cos + turn, buffers.sin + turn);
          }
        }
      }
    });
  }

  RowEncoder<T> encoder_;

 private:
  Place place(std::int64_t row) const {
    return heads_inside_ ? Place{row % heads_, row / heads_} : Place{row / tokens_, row % tokens_};
  }

  AngleSource<T> source_;
  std::int64_t batch_, heads_, tokens_;
  bool heads_inside_;
};

template <class T>
class Forward : Encoding<T> {
 public:
  Forward(const View& x, const View& o, const View& angles, const RowTransform& transform)
      : Encoding<T>(x, angles, transform, x.size(3)), x_(x), o_(Target::write_to(o)) {}

  void run() const {
    this->for_each_row(Angles::enter, [&](auto& buffers, std::int64_t b, const auto& place,
                                          const T* cos, const T* sin) {
      const std::int64_t d = this->encoder_.features(), width = this->encoder_.width();
      const std::int64_t to = this->offset(o_.view, b, place), stride = o_.view.stride(3);
      const T* x = read_row(buffers.row, x_, this->offset(x_, b, place), x_.stride(3), d);
      const T* y = this->encoder_.activate(x, {}, buffers.spare);
      T* o = place_of_row(buffers.wide, o_, to, stride, width);
      this->encoder_.encode(y, cos, sin, o);
      finish_row(o_, to, stride, o, width);
    });
  }

 private:
  const View& x_;
  Grad o_;
};

template <class T>
class Backward : Encoding<T> {
 public:
  Backward(const View& x, const View& d_o, const Grad& d_x, const View& angles,
           const RowTransform& transform)
      : Encoding<T>(d_o, angles, transform, d_x.view.size(3)), x_(x), d_o_(d_o), d_x_(d_x) {}

  void run() const {
    this->for_each_row(Angles::read, [&](auto& buffers, std::int64_t b, const auto& place,
                                         const T* cos, const T* sin) {
      const auto& encoder = this->encoder_;
      const std::int64_t d = encoder.features(), to = this->offset(d_x_.view, b, place);
      const std::int64_t stride = d_x_.view.stride(3);
      const T* d_o = read_row(buffers.wide, d_o_, this->offset(d_o_, b, place), d_o_.stride(3),
                              encoder.width());
      T* d_x = place_of_row(buffers.row, d_x_, to, stride, d);
      encoder.encode_back(d_o, cos, sin, d_x);
      if (encoder.has_act()) {
        // d_o is no longer needed; x and the softmax of it can lie there.
        const T* x = read_row(buffers.wide, x_, this->offset(x_, b, place), x_.stride(3), d);
        encoder.activate_back(x, d_x, {}, buffers.spare, d_x);
      }
      finish_row(d_x_, to, stride, d_x, d);
    });
  }

 private:
  const View& x_;
  const View& d_o_;
  const Grad& d_x_;
};

template <class T>
void forward_as(const View& x, const View& o, const View& angles, const RowTransform& transform) {
  if (transform.softmax_over_sequence()) return SequenceForward<T>(x, o, angles, transform).run();
  Forward<T>(x, o, angles, transform).run();
}

template <class T>
void backward_as(const View& x, const View& d_o, const Grad& d_x, const View& angles,
                 const RowTransform& transform) {
  if (transform.softmax_over_sequence()) {
    return SequenceBackward<T>(x, d_o, d_x, angles, transform).run();
  }
  Backward<T>(x, d_o, d_x, angles, transform).run();
}

void forward(View x, View o, View angles, const RowTransform& transform, View) {
  if (x.numel() == 0) return;
  (x.dtype == f64 ? forward_as<double> : forward_as<float>)(x, o, angles, transform);
}

void backward(View x, View d_o, Grad d_x, View angles, const RowTransform& transform, View) {
  if (d_o.numel() == 0) return;
  (d_o.dtype == f64 ? backward_as<double> : backward_as<float>)(x, d_o, d_x, angles, transform);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_lrpe() {
  lrpe_forward_kernel.provide(Variant::cpu, on_cpu::forward);
  lrpe_backward_kernel.provide(Variant::cpu, on_cpu::backward);
}

}  // namespace quipu::detail
