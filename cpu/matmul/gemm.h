#pragma once
// Matrix products on one thread: what kernels that cut their work into tiles call for each tile.
#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "quipu/core/dtype.h"

namespace quipu::detail::on_cpu {

inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}
/// The length of equal parts of n (the last may be shorter), none above `most`.
inline std::int64_t even_part(std::int64_t n, std::int64_t most) {
  const std::int64_t parts = std::max<std::int64_t>(1, (n + most - 1) / most);
  return (n + parts - 1) / parts;
}

/// A matrix of any floating type as it lies in memory; strides in elements.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t row_stride = 0, column_stride = 0;

  Matrix transposed() const { return {data, dtype, columns, rows, column_stride, row_stride}; }
  /// The part that begins at (row, column), cut off where the matrix ends.
  Matrix block(std::int64_t row, std::int64_t column, std::int64_t most_rows,
               std::int64_t most_columns) const {
    const std::int64_t some_rows = std::clamp<std::int64_t>(rows - row, 0, most_rows);
    const std::int64_t some_columns = std::clamp<std::int64_t>(columns - column, 0, most_columns);
    void* const first = some_rows > 0 && some_columns > 0 ? at(row, column) : data;
    return {first, dtype, some_rows, some_columns, row_stride, column_stride};
  }
  void* at(std::int64_t row, std::int64_t column) const {
    return static_cast<char*>(data) +
           (row * row_stride + column * column_stride) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// A part of a product that is complete: at (row, column), its rows `stride` apart.
template <class T>
struct ProductPart {
  std::int64_t row, column, rows, columns;
  T* sums;
  std::int64_t stride;
};

/// A reference to a function that takes parts of a product.
template <class T>
class ProductTaker {
 public:
  template <class F>
  requires(!std::is_same_v<F, ProductTaker>)  // a copy must not refer to the original
      explicit ProductTaker(F& f)
      : object_(&f),
        call_([](void* o, const ProductPart<T>& part) { (*static_cast<F*>(o))(part); }) {}
  void operator()(const ProductPart<T>& part) const { call_(object_, part); }

 private:
  void* object_;
  void (*call_)(void*, const ProductPart<T>&);
};

/// The buffers of products on one thread: 250 KiB, meant for the stack. T is float or double.
template <class T>
class Gemm {
 public:
  static constexpr std::int64_t max_tile = (64 << 10) / sizeof(T);

  /// With room for `tile` elements, at most `max_tile`, to put a result into. `from_far` says that
  /// products wait for operands unless those are asked for in advance.
  explicit Gemm(std::int64_t tile = 0, bool from_far = true)
      : b_(space_ + round_up(tile, 64 / sizeof(T))),
        b_size_(space_ + space_size - b_),
        asks_(from_far) {}
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  T* tile() { return space_; }

  /// What the caller is going to read: asked for in advance, too, where operands come from far. The
  /// second-level cache has to hold it beside the product.
  using Next = std::array<Matrix, 4>;

  /// c (=|+=) a b, where c is (a.rows, b.columns) with dense rows that lie `c_stride` apart. A
  /// taker is given every part of the sums as soon as it is complete, while it is in the
  /// first-level cache. There need be no c then (null) if a has no more columns than
  /// `depth_at_once`.
  void multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add,
                const Next& next = {}, const ProductTaker<T>* taker = nullptr);
  std::int64_t depth_at_once(std::int64_t columns) const;

  // Sizes of the buffers, in elements. The inner loop reads a few rows of `a` from the first-level
  // cache and panels of `b` from the second.
  static constexpr std::int64_t max_depth = 208, a_rows = 192 / sizeof(T);
  static constexpr std::int64_t a_stride = max_depth + 64 / sizeof(T);  // spreads over cache sets
  static constexpr std::int64_t max_columns = 1024 / sizeof(T);
  static constexpr std::int64_t space_size = max_depth * max_columns;

 private:
  // A slot is what is packed as one element: a number, or two narrower ones.
  template <class Slot>
  void multiply_as(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add,
                   const Next& next, const ProductTaker<T>* taker);
  void nothing(std::int64_t rows, std::int64_t columns, T* c, std::int64_t c_stride, bool add,
               const ProductTaker<T>* taker);
  template <class Slot>
  bool pack_a(const Matrix& a);
  template <class Slot>
  void pack_b(const Matrix& b);
  template <class Slot>
  void transpose_into_panel(const Matrix& panel, T* out, std::int64_t width);

  alignas(64) T a_[a_rows * a_stride];
  alignas(64) T space_[space_size];  // the tile, then the panels of b
  T* b_;
  std::int64_t b_size_;
  bool asks_;
};

extern template class Gemm<float>;
extern template class Gemm<double>;

}  // namespace quipu::detail::on_cpu
