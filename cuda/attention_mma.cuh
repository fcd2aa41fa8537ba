#pragma once
// What the passes of attention by tensor cores share: fragments of 16-bit operands and of products.
#include "attention.cuh"
#include "ptx.h"

namespace quipu::on_cuda::attention_mma {

/// Two neighbours in a fragment.
template <class E>
__device__ __forceinline__ unsigned pair_of(float low, float high) {
  struct Pair {
    E low, high;
  };
  return std::bit_cast<unsigned>(Pair{converted<E>(low), converted<E>(high)});
}

/// A left operand that is an intermediate result: as the sum of two, so that nothing of note is
/// lost to 16 bits.
struct Halves {
  unsigned high[4], low[4];

  template <class E>
  __device__ __forceinline__ void set(int i, float first, float second) {
    const E a = converted<E>(first), b = converted<E>(second);
    high[i] = pair_of<E>(first, second);
    low[i] = pair_of<E>(first - converted<float>(a), second - converted<float>(b));
  }
};

template <class E>
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&left)[4],
                                         const unsigned (&right)[2]) {
  if constexpr (std::is_same_v<E, __half>) {
    ptx::mma_f16(sum, left, right);
  } else {
    ptx::mma_bf16(sum, left, right);
  }
}
template <class E>
__device__ __forceinline__ void multiply(float (&sum)[4], const Halves& left,
                                         const unsigned (&right)[2]) {
  multiply<E>(sum, left.low, right);
  multiply<E>(sum, left.high, right);
}

inline constexpr int side = 64;           // rows and keys of a tile
inline constexpr unsigned threads = 128;  // four warps, 16 rows each

/// A tile of up to `width` features in shared memory; the pitch puts eight rows that ldmatrix reads
/// into different banks.
template <class E, int width>
struct Tile {
  static constexpr int pitch = width + 8, elements = side * pitch;

  __device__ __forceinline__ E* at(int row, int column) const {
    return data + row * pitch + column;
  }
  /// Rows from `first` on, those from `end` on as zeros, in the background.
  template <bool of_queries>
  __device__ __forceinline__ void fetch(const Attention<float>& a, const AttentionPlace& place,
                                        const AttentionView& x, int first, int end,
                                        int features) const {
    constexpr int pieces = width / 8;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < side * pieces; i += threads) {
      const int row = i / pieces, column = i % pieces * 8;
      if (column >= features) continue;
      const bool valid = first + row < end;
      const std::int64_t from = place.start<of_queries>(a, x, valid ? first + row : 0) + column;
      ptx::copy_async<16>(at(row, column), static_cast<const E*>(x.data) + from, valid);
    }
  }
  /// A left operand: 16 rows and 16 columns.
  __device__ __forceinline__ void load_left(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix(r, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// Two right operands whose columns are 16 rows of the tile, over 16 of its columns.
  __device__ __forceinline__ void load_turned(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix(r, at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  }
  /// Two right operands whose columns are 16 columns of the tile, over 16 of its rows.
  __device__ __forceinline__ void load_right(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix<4, true>(r, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// Puts zeros in the place of infinity and NaN in some rows, whose products with weights of 0
  /// would be NaN; says whether there were any. All threads of the block take part.
  __device__ __forceinline__ bool clean(int first, int rows, int features) const {
    bool found = false;
    __syncthreads();  // nobody reads them any more
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += threads) {
      const int row = first + i / width, column = i % width;
      if (column >= features || !is_no_number(converted<float>(*at(row, column)))) continue;
      found = true;
      *at(row, column) = converted<E>(0.0f);
    }
    return __syncthreads_or(found) != 0;
  }
  E* data;
};

/// What clean() took away from column `column` of the rows [first, end) that attend, added up. A
/// weight is not negative, so that the number itself does for the product with it.
template <bool of_queries, class E, class Attends>
__device__ __forceinline__ float cleaned_sum(const Attention<float>& a, const AttentionPlace& place,
                                             const AttentionView& x, int first, int end, int column,
                                             Attends attends) {
  float sum = 0.0f;
#pragma unroll 1
  for (int row = first; row < end; ++row) {
    if (!attends(row)) continue;
    const float value = converted<float>(
        static_cast<const E*>(x.data)[place.start<of_queries>(a, x, row) + column]);
    if (is_no_number(value)) sum += value;
  }
  return sum;
}

}  // namespace quipu::on_cuda::attention_mma

namespace quipu::on_cuda {

/// Whether tensor cores can do a call: 16-bit elements, and rows of whole fragments on 16-byte
/// borders.
template <class T>
bool has_fragments(const Attention<T>& a) {
  const auto fits = [](const AttentionView& x, int features) {
    return size_of(x.dtype) == 2 && x.packed && features % 16 == 0 && features > 0 &&
           features <= 128;
  };
  return fits(a.q, a.d) && fits(a.k, a.d) && fits(a.v, a.e);
}

/// Forward by tensor cores; true where that is possible.
bool attend_by_fragments(const View& on, const Attention<float>& a, std::int64_t heads);
/// Backward likewise; the means are there.
bool differentiate_by_fragments(const View& on, const Attention<float>& a,
                                const AttentionInputGrads& d, std::int64_t heads);

}  // namespace quipu::on_cuda
