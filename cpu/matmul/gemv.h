#pragma once
// Products of a few rows with a matrix: bound by reading the matrix, so nothing is packed.
#include "gemm.h"

namespace quipu::detail::on_cpu {

/// The buffers of such products on one thread, meant for the stack; used like Gemm. T is float or
/// double.
template <class T>
class Gemv {
 public:
  static constexpr std::int64_t max_rows = 4, max_columns = 1024;
  static constexpr std::int64_t max_tile = max_rows * max_columns;

  explicit Gemv(std::int64_t) {}
  Gemv(const Gemv&) = delete;
  Gemv& operator=(const Gemv&) = delete;

  T* tile() { return tile_; }

  /// c (=|+=) a b for at most `max_rows` rows of a; the rows of c are dense and lie `c_stride`
  /// apart.
  void multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add);

 private:
  static constexpr std::int64_t block_size = 16384;  // stays in the second-level cache for all rows
  static constexpr std::int64_t long_side = 1024, short_side = block_size / long_side;

  template <int rows>
  void add_block(const Matrix& block, bool by_columns, T* c, std::int64_t c_stride);

  alignas(64) T a_[max_rows * long_side];
  alignas(64) T block_[block_size];
  alignas(64) T tile_[max_tile];
};

extern template class Gemv<float>;
extern template class Gemv<double>;

}  // namespace quipu::detail::on_cpu
