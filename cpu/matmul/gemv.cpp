// The matrix is read once, in blocks that are long in the direction in which it lies; a block of
// another type is converted first. Every row of `a` then meets the block: sums of its rows, or
// products with its columns. Bound by memory or by the second-level cache.
#include "gemv.h"

#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/simd.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail::on_cpu {
namespace {

/// What a block does to `rows` rows of c at once, so that it is read once for all of them. Rows of
/// `a` lie a_stride apart.
template <class T, int rows>
struct Rows {
  const T* a;
  std::int64_t a_stride;
  T* c;
  std::int64_t c_stride;

  /// c += a block; the block lies by rows.
  void add_rows(const T* block, std::int64_t stride, std::int64_t depth,
                std::int64_t columns) const {
    std::int64_t p = 0;
    for (; p + 4 <= depth; p += 4) add_rows_at<4>(p, block + p * stride, stride, columns);
    for (; p < depth; ++p) add_rows_at<1>(p, block + p * stride, stride, columns);
  }

  /// c += a block; the block lies by columns.
  void add_columns(const T* block, std::int64_t stride, std::int64_t depth,
                   std::int64_t columns) const {
    for (std::int64_t j = 0; j < columns; ++j) add_column(j, block + j * stride, depth);
  }

 private:
  template <int count>
  void add_rows_at(std::int64_t p, const T* b, std::int64_t stride, std::int64_t columns) const {
    T factors[rows][count];
    for (int i = 0; i < rows; ++i) std::copy_n(a + i * a_stride + p, count, factors[i]);
    QUIPU_VECTORIZE
    for (std::int64_t j = 0; j < columns; ++j) {
      for (int i = 0; i < rows; ++i) {
        T sum = c[i * c_stride + j];
        for (int q = 0; q < count; ++q) sum += factors[i][q] * b[q * stride + j];
        c[i * c_stride + j] = sum;
      }
    }
  }

  /// In several chains of vectors, because one would wait for itself.
  void add_column(std::int64_t j, const T* column, std::int64_t depth) const {
    using Loose = typename Simd<T>::Loose;
    constexpr int lanes = Simd<T>::lanes, chains = rows > 2 ? 2 : 4;
    typename Simd<T>::Vector sums[rows][chains] = {};
    std::int64_t p = 0;
    for (; p + chains * lanes <= depth; p += chains * lanes) {
#pragma GCC unroll 4
      for (int k = 0; k < chains; ++k) {
        const Loose b = *reinterpret_cast<const Loose*>(column + p + k * lanes);
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) {
          sums[i][k] += b * *reinterpret_cast<const Loose*>(a + i * a_stride + p + k * lanes);
        }
      }
    }
    for (int i = 0; i < rows; ++i) {
      for (int k = 1; k < chains; ++k) sums[i][0] += sums[i][k];
      T total = 0;
      for (int l = 0; l < lanes; ++l) total += sums[i][0][l];
      for (std::int64_t q = p; q < depth; ++q) total += a[i * a_stride + q] * column[q];
      c[i * c_stride + j] += total;
    }
  }
};

}  // namespace

/// c += a block, where `a` is packed and the block lies by rows or by columns, each of them dense.
template <class T>
template <int rows>
void Gemv<T>::add_block(const Matrix& block, bool by_columns, T* c, std::int64_t c_stride) {
  const Matrix lying = by_columns ? block.transposed() : block;
  const T* data = static_cast<const T*>(lying.data);
  std::int64_t stride = lying.row_stride;
  if (lying.dtype != dtype_of<T> || lying.column_stride != 1) {
    for (std::int64_t i = 0; i < lying.rows; ++i) {
      load_run(block_ + i * lying.columns, lying.at(i, 0), lying.dtype, lying.column_stride,
               lying.columns);
    }
    data = block_;
    stride = lying.columns;
  }
  const Rows<T, rows> all{a_, long_side, c, c_stride};
  if (by_columns) {
    all.add_columns(data, stride, block.rows, block.columns);
  } else {
    all.add_rows(data, stride, block.rows, block.columns);
  }
}

template <class T>
void Gemv<T>::multiply(const Matrix& a, const Matrix& b, T* c, std::int64_t c_stride, bool add) {
  if (!add) {
    for (std::int64_t i = 0; i < a.rows; ++i) std::fill_n(c + i * c_stride, b.columns, T(0));
  }
  const bool by_columns = b.columns == 1 || (b.column_stride != 1 && b.row_stride == 1);
  const std::int64_t depth = by_columns ? long_side : short_side;
  const std::int64_t width = by_columns ? short_side : long_side;
  for (std::int64_t p = 0; p < b.rows; p += depth) {
    const std::int64_t count = std::min(depth, b.rows - p);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      load_run(a_ + i * long_side, a.at(i, p), a.dtype, a.column_stride, count);
    }
    for (std::int64_t j = 0; j < b.columns; j += width) {
      const Matrix block = b.block(p, j, count, std::min(width, b.columns - j));
      switch (a.rows) {
        case 1: add_block<1>(block, by_columns, c + j, c_stride); break;
        case 2: add_block<2>(block, by_columns, c + j, c_stride); break;
        case 3: add_block<3>(block, by_columns, c + j, c_stride); break;
        case 4: add_block<4>(block, by_columns, c + j, c_stride); break;
      }
    }
  }
}

template class Gemv<float>;
template class Gemv<double>;

}  // namespace quipu::detail::on_cpu
