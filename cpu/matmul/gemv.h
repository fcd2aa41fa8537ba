#pragma once
// Products of a few rows with a matrix: bound by reading the matrix, so nothing of it is packed.
#include "gemm.h"
#include "quipu/cpu/simd/simd.h"

namespace quipu::detail::on_cpu {

/// The buffers of such products on one thread, meant for the stack; used like Gemm. T is float or
/// double.
template <class T>
class Gemv {
 public:
  static constexpr std::int64_t max_rows = 8, max_columns = 1024;
  static constexpr std::int64_t max_tile = max_rows * max_columns;

  Gemv(std::int64_t, bool) {}
  Gemv(const Gemv&) = delete;
  Gemv& operator=(const Gemv&) = delete;

  T* tile() { return tile_; }

  /// c (=|+=) a b for at most `max_rows` rows of a; the rows of c are dense and lie `c_stride`
  /// apart.
  void multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add);

  /// Whether b is read column by column: where it lies so, or has too few for a vector.
  static bool by_columns(const Matrix& b) {
    return b.columns < Simd<T>::lanes || (b.column_stride != 1 && b.row_stride == 1);
  }

 private:
  static constexpr std::int64_t block_size = 16384;  // stays in the second-level cache for all rows
  static constexpr std::int64_t long_side = 1024, short_side = block_size / long_side;
  static constexpr std::int64_t a_stride = long_side + 64 / sizeof(T);  // spreads over cache sets

  template <class Element>
  void multiply_as(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride);
  void pack_a(const Matrix& a, std::int64_t first, std::int64_t count, bool pairs);

  alignas(64) T a_[max_rows * a_stride];
  alignas(64) T block_[block_size];
  alignas(64) T tile_[max_tile];
};

extern template class Gemv<float>;
extern template class Gemv<double>;

}  // namespace quipu::detail::on_cpu
