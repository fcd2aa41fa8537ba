#pragma once
// What forward and backward of attention over factored keys and values share: the factors as
// matrices, and the scores of a tile of entries.
#include "quipu/core/error.h"
#include "quipu/cpu/matmul/gemm.h"
#include "quipu/cpu/rows.h"
#include "quipu/cpu/workspace.h"
#include "quipu/ops/tpa_decode/kernels.h"

namespace quipu::detail::on_cpu {

/// A part of a thread's tile as a matrix with dense rows.
template <class T>
Matrix tile_matrix(T* data, std::int64_t rows, std::int64_t columns) {
  return {data, dtype_of<T>, rows, columns, columns, 1};
}

/// Matrix `index` of a view of three dimensions.
inline Matrix matrix_of(const View& v, std::int64_t index) {
  if (v.numel() == 0) return {nullptr, v.dtype, v.size(1), v.size(2), 0, 0};
  return {at(v, index * v.stride(0)), v.dtype, v.size(1), v.size(2), v.stride(1), v.stride(2)};
}

/// Where the row (b, m, rank) of a view of four dimensions begins.
inline std::int64_t row_offset(const View& v, std::int64_t b, std::int64_t m, std::int64_t rank) {
  return b * v.stride(0) + m * v.stride(1) + rank * v.stride(2);
}

/// Rows (b, m, rank), ..., (b, m + rows - 1, rank) of a view of four dimensions.
inline Matrix entries_of(const View& v, std::int64_t b, std::int64_t m, std::int64_t rows,
                         std::int64_t rank) {
  if (v.numel() == 0) return {nullptr, v.dtype, rows, v.size(3), 0, 0};
  return {at(v, row_offset(v, b, m, rank)), v.dtype, rows, v.size(3), v.stride(1), v.stride(3)};
}

/// Entries of a tile whose rows are `width` wide: whole blocks of a product where possible.
template <class T>
std::int64_t tile_rows(std::int64_t tile, std::int64_t width) {
  constexpr std::int64_t block = Gemm<T>::a_rows;
  const std::int64_t rows = std::min(2 * block, tile / std::max<std::int64_t>(width, 1));
  return rows < block ? std::max<std::int64_t>(rows, 1) : rows / block * block;
}

/// How many entries of each batch entry attend.
class TpaLengths {
 public:
  TpaLengths(const TpaInputs& in) : lengths_(in.lengths), all_(in.ak.size(1)) {}

  std::int64_t operator[](std::int64_t b) const {
    if (!lengths_.defined) return all_;
    return *reinterpret_cast<const std::int64_t*>(at(lengths_, b * lengths_.stride(0)));
  }
  void check_values() const {
    if (!lengths_.defined) return;
    for (std::int64_t b = 0; b < lengths_.size(0); ++b) {
      check((*this)[b] >= 0 && (*this)[b] <= all_, "lengths at ", Dims{b}, " is ", (*this)[b],
            ", but there are ", all_, " entries");
    }
  }

 private:
  const View& lengths_;
  std::int64_t all_;
};

/// Some entries of one batch entry and some of its heads.
struct TpaTile {
  std::int64_t b, first, rows, head, heads;
};

template <class T>
class TpaScores {
 public:
  TpaScores(const TpaInputs& in) : in_(in), scale_(static_cast<T>(in.score_scale)) {}

  T scale() const { return scale_; }
  std::int64_t key_rank() const { return in_.ak.size(2); }
  std::int64_t r() const { return in_.aq.size(2); }
  Matrix aq(const TpaTile& t) const {
    return matrix_of(in_.aq, t.b).block(t.head, 0, t.heads, r());
  }
  Matrix bk(const TpaTile& t, std::int64_t rank) const {
    return entries_of(in_.bk, t.b, t.first, t.rows, rank);
  }

  /// inner (rows, r) = bk bq^T, products (rows, heads) = inner aq^T.
  void multiply(Gemm<T>& gemm, const TpaTile& t, std::int64_t rank, T* inner, T* products) const {
    if (t.heads == 0) return;
    gemm.multiply(bk(t, rank), matrix_of(in_.bq, t.b).transposed(), inner, r(), false);
    gemm.multiply(tile_matrix(inner, t.rows, r()), aq(t).transposed(), products, t.heads, false);
  }

  /// scores (rows, heads), scaled; `inner` and `products` hold those of the last rank.
  void score(Gemm<T>& gemm, const TpaTile& t, T* inner, T* products, T* scores) const {
    std::fill_n(scores, t.rows * t.heads, T(0));
    for (std::int64_t rank = 0; rank < key_rank(); ++rank) {
      multiply(gemm, t, rank, inner, products);
      for_each_factor(in_.ak, t, rank, [&](std::int64_t i, const T* ak) {
        const T* product = products + i * t.heads;
        T* score = scores + i * t.heads;
        QUIPU_VECTORIZE
        for (std::int64_t h = 0; h < t.heads; ++h) score[h] += scale_ * (ak[h] * product[h]);
      });
    }
  }

  /// Calls f(i, row) with the heads of each entry, from ak or av.
  template <class F>
  static void for_each_factor(const View& a, const TpaTile& t, std::int64_t rank, F f) {
    T buffer[most_tpa_width];
    for (std::int64_t i = 0; i < t.rows; ++i) {
      const std::int64_t offset = row_offset(a, t.b, t.first + i, rank) + t.head * a.stride(3);
      f(i, read_row(buffer, a, offset, a.stride(3), t.heads));
    }
  }

 private:
  const TpaInputs& in_;
  T scale_;
};

}  // namespace quipu::detail::on_cpu
