#pragma once
// One row at a time: its activation, its angles, its encoding, and the way back. Rows are dense and
// of a compute type. cos and sin belong to a head and a token, so they are found once and serve the
// whole batch.
#include "quipu/cpu/pointwise/functions.h"
#include "quipu/cpu/rows.h"
#include "quipu/ops/lrpe/kernels.h"

namespace quipu::detail::on_cpu {

/// cos and sin of n angles of any size.
template <class T>
void find_turns(const T* angles, T* cos, T* sin, std::int64_t n) {
  if (math::within_sincos_limit(angles, n)) {
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) {
      const math::SinCos<T> turn = math::sincos(angles[i]);
      cos[i] = turn.cos;
      sin[i] = turn.sin;
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const math::SinCos<T> turn = math::sincos_anywhere(angles[i]);
      cos[i] = turn.cos;
      sin[i] = turn.sin;
    }
  }
}

/// (a, b) turned by n angles; the results may lie where a and b do.
template <class T>
void turn_pairs(const T* a, const T* b, const T* cos, const T* sin, T* to_a, T* to_b,
                std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = a[i], y = b[i];
    to_a[i] = x * cos[i] - y * sin[i];
    to_b[i] = x * sin[i] + y * cos[i];
  }
}
/// The same, turned back.
template <class T>
void turn_pairs_back(const T* a, const T* b, const T* cos, const T* sin, T* to_a, T* to_b,
                     std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = a[i], y = b[i];
    to_a[i] = x * cos[i] + y * sin[i];
    to_b[i] = y * cos[i] - x * sin[i];
  }
}

/// What softmax over the tokens knows of the columns of one batch entry and head.
template <class T>
struct ColumnRow {
  const T* largest = nullptr;
  const T* inverse = nullptr;  // of the sum
  const T* mean = nullptr;     // of the gradient, for the way back
};

template <class T>
class RowEncoder {
 public:
  RowEncoder(const RowTransform& transform, std::int64_t features)
      : transform_(transform), d_(features) {
    switch (transform.act) {
      case Act::relu: use(Pointwise::relu, Pointwise::relu_grad); break;
      case Act::sigmoid: use(Pointwise::sigmoid, Pointwise::sigmoid_grad); break;
      case Act::silu: use(Pointwise::silu, Pointwise::silu_grad); break;
      default: break;
    }
  }

  std::int64_t features() const { return d_; }
  std::int64_t angles() const { return angles_of(transform_.kind, d_); }
  /// Features of an encoded row.
  std::int64_t width() const { return encoded_features(transform_.kind, d_); }
  bool has_act() const { return transform_.act != Act::none; }

  /// The angles of a head and token.
  void find_angles(std::int64_t head, std::int64_t token, T* angle) const {
    const View& theta = transform_.theta;
    const std::int64_t e = theta.size(1);
    const std::int64_t offset = theta.size(0) == 1 ? 0 : head * theta.stride(0);
    const std::int64_t given = for_each_position(
        token, e, [&](std::int64_t first, std::int64_t count, std::int64_t position) {
          load_run(angle + first, at(theta, offset), theta.dtype, e == 1 ? 0 : theta.stride(1),
                   count);
          const T factor = static_cast<T>(position);
          for (std::int64_t i = first; i < first + count; ++i) angle[i] *= factor;
        });
    std::fill(angle + given, angle + angles(), T(0));
  }

  /// Calls f(first, count, position) for the runs of a token's angles that theta with e columns has
  /// a say in. Each grid axis has e of them, the last perhaps fewer; the last axis runs fastest.
  /// Returns how many angles these are; those behind are 0.
  template <class F>
  std::int64_t for_each_position(std::int64_t token, std::int64_t e, F f) const {
    const std::int64_t n = angles(), given = e == 1 ? n : std::min(e, n);
    if (transform_.grid.empty()) {
      f(0, given, transform_.offset + token);
      return given;
    }
    std::int64_t place = token - transform_.lead;
    if (place < 0) return 0;
    for (int axis = transform_.grid.size() - 1; axis >= 0; --axis) {
      const std::int64_t size = transform_.grid[axis], first = axis * e;
      if (first < n) f(first, std::min(e, n - first), place % size);
      place /= size;
    }
    return n;
  }

  /// The activated row: x itself if there is no activation, else in `y`, which may be x.
  const T* activate(const T* x, const ColumnRow<T>& columns, T* y) const {
    if (!has_act()) return x;
    if (function_) {
      function_(x, nullptr, nullptr, y, d_);
    } else if (transform_.over_sequence) {
      softmax_of_columns(x, columns, y);
    } else {
      softmax_row(x, y, d_);
    }
    return y;
  }

  /// d_x from x and the gradient of the activated row; d_x may be d_y. `spare` has room for a row
  /// and is neither.
  void activate_back(const T* x, const T* d_y, const ColumnRow<T>& columns, T* spare,
                     T* d_x) const {
    if (gradient_) return gradient_(d_y, x, nullptr, d_x, d_);
    if (transform_.over_sequence) {
      softmax_of_columns(x, columns, spare);
      const T* mean = columns.mean;
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < d_; ++i) d_x[i] = spare[i] * (d_y[i] - mean[i]);
    } else {
      softmax_row(x, spare, d_);
      softmax_row_gradient(spare, d_y, d_x, d_);
    }
  }

  /// o = the encoded row of y; o may be y where it is not wider.
  void encode(const T* y, const T* cos, const T* sin, T* o) const {
    if (transform_.kind != LrpeKind::none) return encode(y, cos, sin, o, angles());
    if (o != y) std::copy_n(y, d_, o);
  }
  /// The same for a part of the row: n of the angles and, one behind the other, what belongs to
  /// them of each half.
  void encode(const T* y, const T* cos, const T* sin, T* o, std::int64_t n) const {
    if (transform_.kind == LrpeKind::rotate) return turn_pairs(y, y + n, cos, sin, o, o + n, n);
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) {
      const T v = y[i];
      o[i] = v * cos[i];
      o[n + i] = v * sin[i];
    }
  }

  /// d_y = the gradient of y from that of the encoded row.
  void encode_back(const T* d_o, const T* cos, const T* sin, T* d_y) const {
    if (transform_.kind != LrpeKind::none) return encode_back(d_o, cos, sin, d_y, angles());
    if (d_y != d_o) std::copy_n(d_o, d_, d_y);
  }
  /// The same for a part of the row.
  void encode_back(const T* d_o, const T* cos, const T* sin, T* d_y, std::int64_t n) const {
    if (transform_.kind == LrpeKind::rotate) {
      return turn_pairs_back(d_o, d_o + n, cos, sin, d_y, d_y + n, n);
    }
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) d_y[i] = d_o[i] * cos[i] + d_o[n + i] * sin[i];
  }

 private:
  void use(Pointwise function, Pointwise gradient) {
    function_ = pointwise_function<T>(function);
    gradient_ = pointwise_function<T>(gradient);
  }

  void softmax_of_columns(const T* x, const ColumnRow<T>& columns, T* y) const {
    const T *largest = columns.largest, *inverse = columns.inverse;
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < d_; ++i) y[i] = math::exp_below(x[i] - largest[i]) * inverse[i];
  }

  const RowTransform& transform_;
  std::int64_t d_;
  PointwiseFunction<T> function_ = nullptr, gradient_ = nullptr;
};

/// Found for this use only; found and entered in the table if there is one; read there if there is
/// one.
enum class Angles { find, enter, read };

/// The angles of rows, with an optional table (h, t, angles of a row) of them.
template <class T>
class AngleSource {
 public:
  AngleSource(const View& table, const RowEncoder<T>& encoder, std::int64_t tokens)
      : table_(table.as<T>()), encoder_(encoder), tokens_(tokens) {}

  /// Where they lie: in the table or in `buffer`.
  const T* get(Angles how, std::int64_t head, std::int64_t token, T* buffer) const {
    T* entry = table_ ? table_ + (head * tokens_ + token) * encoder_.angles() : nullptr;
    if (entry && how == Angles::read) return entry;
    T* to = entry && how == Angles::enter ? entry : buffer;
    encoder_.find_angles(head, token, to);
    return to;
  }

 private:
  T* table_;
  const RowEncoder<T>& encoder_;
  std::int64_t tokens_;
};

}  // namespace quipu::detail::on_cpu
