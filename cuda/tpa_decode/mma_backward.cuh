#pragma once
// Parts of backward of tensor product attention by tensor cores (mma_backward.cu): the layout of
// shared memory, and products of (entry, head) with rows.
#include "mma.cuh"

namespace quipu::detail::on_cuda::tpa_mma {

using E = __nv_bfloat16;
inline constexpr int query_pitch = most_columns + 4;

struct BackwardShared {
  uint4 panels[2][2][Panel<E>::size];   // of a tile and the next: keys, values
  uint4 queries[Split<Wide<E>>::size];  // (head, d)
  uint4 d_o[Wide<E>::size];             // (head, e)
  uint4 weights[Split<Narrow<E>>::size], d_scores[Split<Narrow<E>>::size];  // g, y
  float4 results[2][rows * most_heads / 4];  // gradients of av and ak: (entry, head)
  float lse[most_heads], rest[most_heads], mean[most_heads], query_scale[most_heads],
      largest[most_heads];
};
static_assert(2 * (sizeof(BackwardShared) + 1024) <= 164 * 1024);

/// XOR swizzle of results: the index of four heads of a row. Writes are pairs of a warp's heads,
/// reads are fours of all heads of two rows; neither has bank conflicts.
__device__ __forceinline__ int result_swizzle(int row, int chunk) {
  return row * (most_heads / 4) + (chunk ^ ((2 * row & 6) | (row & 1)));
}

/// A warp's accumulators of 32 rows or heads times 32 columns: fragments of 16 x 8.
using Sums = float[2][4][4];

/// sums += a b, where a are the 32 rows from `part` on of a tile of (entry, head), or their
/// transpose, and b those from `row` on of a tile of rows.
template <bool transposed, class Tile>
__device__ __forceinline__ void add_product(Sums& sums, const Split<Narrow<E>>& a, int part,
                                            const Tile& b, int row, const Thread& self,
                                            int columns) {
#pragma unroll
  for (int k = 0; k < 32; k += 16) {
    unsigned left[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (transposed) {
        a.load_a_transposed(left[i], part + k, 16 * i);
      } else {
        a.load_a(left[i], part + 16 * i, k);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (32 * self.warp + 16 * n >= columns) continue;
      unsigned right[4];
      b.load_b(right, row + k, 32 * self.warp + 16 * n);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<E>(sums[i][2 * n], left[i], {right[0], right[1]});
        mma<E>(sums[i][2 * n + 1], left[i], {right[2], right[3]});
      }
    }
  }
}

}  // namespace quipu::detail::on_cuda::tpa_mma
