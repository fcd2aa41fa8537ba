#pragma once
// What the passes of attention by tensor cores share: fragments of 16-bit operands and of products.
#include "attention.cuh"
#include "quipu/cuda/ptx.h"

namespace quipu::detail::on_cuda::attention_mma {

/// A pair of 16-bit elements of a fragment.
template <class E>
__device__ __forceinline__ unsigned pair_of(float low, float high) {
  struct Pair {
    E low, high;
  };
  return std::bit_cast<unsigned>(Pair{converted<E>(low), converted<E>(high)});
}

/// An A fragment of an f32 intermediate, split into 16 bits (hi) and the residual (lo).
struct SplitFragment {
  unsigned hi[4], lo[4];

  template <class E>
  __device__ __forceinline__ void set(int i, float first, float second) {
    const E a = converted<E>(first), b = converted<E>(second);
    hi[i] = pair_of<E>(first, second);
    lo[i] = pair_of<E>(first - converted<float>(a), second - converted<float>(b));
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
__device__ __forceinline__ void multiply(float (&sum)[4], const SplitFragment& left,
                                         const unsigned (&right)[2]) {
  multiply<E>(sum, left.lo, right);
  multiply<E>(sum, left.hi, right);
}

inline constexpr int side = 64;           // rows and keys of a tile
inline constexpr unsigned threads = 128;  // four warps, 16 rows each

/// A thread's warp, and its position in the fragments of an mma (ptx.h).
struct Thread {
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int group = lane / 4, member = lane % 4;
};

/// A tile of `height` rows of up to `width` features in shared memory. The padding keeps ldmatrix
/// free of bank conflicts.
template <class E, int width, int height = side>
struct Tile {
  static constexpr int pitch = width + 8, elements = height * pitch;

  __device__ __forceinline__ E* at(int row, int column) const {
    return data + row * pitch + column;
  }
  /// Starts the copies (cp.async) of rows from `first` on; rows from `end` on become zeros.
  template <bool of_queries>
  __device__ __forceinline__ void fetch(const Attention<float>& a, const HeadOffsets& offsets,
                                        const AttentionView& x, int first, int end,
                                        int features) const {
    constexpr int chunks = width / 8;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < height * chunks; i += threads) {
      const int row = i / chunks, column = i % chunks * 8;
      if (column >= features) continue;
      const bool valid = first + row < end;
      const std::int64_t from = offsets.start<of_queries>(a, x, valid ? first + row : 0) + column;
      ptx::copy_async<16>(at(row, column), static_cast<const E*>(x.data) + from, valid);
    }
  }
  /// The A fragment of 16 rows and 16 columns.
  __device__ __forceinline__ void load_a(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix(r, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// Two B fragments of the transposed tile: n runs over 16 rows of the tile, k over 16 columns.
  __device__ __forceinline__ void load_b_transposed(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix(r, at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  }
  /// Two B fragments of the tile: k runs over 16 of its rows, n over 16 columns.
  __device__ __forceinline__ void load_b(unsigned (&r)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix<4, true>(r, at(row + lane % 16, column + lane / 16 * 8));
  }
  /// Zeroes infinity and NaN in some rows, whose products with masked weights of 0 would be NaN;
  /// returns whether there were any. All threads of the block call it.
  __device__ __forceinline__ bool zero_nonfinite(int first, int rows, int features) const {
    bool found = false;
    __syncthreads();  // nobody reads them any more
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * width; i += threads) {
      const int row = first + i / width, column = i % width;
      if (column >= features || !is_nonfinite(converted<float>(*at(row, column)))) continue;
      found = true;
      *at(row, column) = converted<E>(0.0f);
    }
    return __syncthreads_or(found) != 0;
  }
  E* data;
};

/// The sum of what zero_nonfinite() zeroed in a column of the rows [first, end) that attend. A
/// weight is positive, so that infinity or NaN stands for its product with it.
template <bool of_queries, class E, class Attends>
__device__ __forceinline__ float nonfinite_sum(const Attention<float>& a,
                                               const HeadOffsets& offsets, const AttentionView& x,
                                               int first, int end, int column, Attends attends) {
  float sum = 0.0f;
#pragma unroll 1
  for (int row = first; row < end; ++row) {
    if (!attends(row)) continue;
    const float value = converted<float>(
        static_cast<const E*>(x.data)[offsets.start<of_queries>(a, x, row) + column]);
    if (is_nonfinite(value)) sum += value;
  }
  return sum;
}

}  // namespace quipu::detail::on_cuda::attention_mma

namespace quipu::detail::on_cuda {

/// Whether tensor cores support a call: 16-bit elements, and rows of whole fragments, aligned to 16
/// bytes.
template <class T>
bool supports_mma(const Attention<T>& a) {
  const auto fits = [](const AttentionView& x, int features) {
    return size_of(x.dtype) == 2 && x.packed && features % 16 == 0 && features > 0 &&
           features <= 128;
  };
  return fits(a.q, a.d) && fits(a.k, a.d) && fits(a.v, a.e);
}

/// Forward by tensor cores; returns false, having launched nothing, where they do not support the
/// call.
bool attention_forward_mma(const View& on, const Attention<float>& a, std::int64_t heads);
/// Backward likewise; `a.mean` is filled.
bool attention_backward_mma(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
                            std::int64_t heads);

}  // namespace quipu::detail::on_cuda
