#pragma once
// What the passes of attention by tensor cores share: which calls they support, and infinity and
// NaN beside a causal mask.
#include "attention.cuh"
#include "blocks.h"
#include "quipu/cuda/tile/fragments.cuh"

namespace quipu::detail::on_cuda::attention_mma {

inline constexpr unsigned threads = 128;  // four warps

/// Zeroes infinity and NaN in a tile, whose products with masked weights of 0 would be NaN; returns
/// whether there were any. All threads of the block call it.
template <class Tile>
__device__ __forceinline__ bool zero_nonfinite(const Tile& tile) {
  using E = typename Tile::E;
  using Chunk = Packed<float, E>;
  bool found = false;
  __syncthreads();  // nobody reads them any more
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tile::size; i += threads) {
    float values[8];
    Chunk::unpack(tile.data[i], values);
    bool here = false;
#pragma unroll
    for (float& x : values) {
      here |= is_nonfinite(x);
      x = is_nonfinite(x) ? 0.0f : x;
    }
    if (here) tile.data[i] = Chunk::packed(values);
    found |= here;
  }
  return __syncthreads_or(found) != 0;
}

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
  return attention_suits_tensor_cores(a.q.dtype, a.d, a.e) && a.q.packed && a.k.packed &&
         a.v.packed;
}

/// Forward by tensor cores; returns false, having launched nothing, where they do not support the
/// call. `partial` is workspace for several `blocks` of keys.
bool attention_forward_mma(const View& on, const Attention<float>& a, const View& o,
                           const LogSums& sums, const View& partial, const TpaBlocks& blocks);
/// Backward likewise, with its workspace, where `a.mean` and sizes are filled and turns are 0.
bool attention_backward_mma(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
                            std::int64_t heads, const AttentionSpace& space, float* words);

}  // namespace quipu::detail::on_cuda
