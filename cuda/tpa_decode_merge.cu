// Where the entries of tpa_decode are cut into several blocks, this puts their outputs together by
// their log-sum-exps, shifted by the largest. A warp has a head and goes along the columns; each
// part is read once, in the order of the blocks. Bound by memory.
//
// sass merge_blocks: forbid STL LDL LD.E$ ST.E$; registers 64
#include <cmath>

#include "runtime/run.h"
#include "tpa_decode.cuh"

namespace quipu::on_cuda {
namespace {

constexpr int merge_heads = 8;  // a warp each

/// Block (b, some heads): o and lse from those of the blocks.
template <class T>
__global__ void __launch_bounds__(block_threads)
    merge_blocks(ForwardTarget<T> to, TpaBlocks blocks) {
  T* const weights = dynamic_shared<T>();  // (head, block), a column of padding
  const std::int64_t b = blockIdx.x, first = blockIdx.y * merge_heads;
  const int count = static_cast<int>(blocks.count);
  const int heads = static_cast<int>(min(static_cast<std::int64_t>(merge_heads), to.heads - first));
  for (int i = static_cast<int>(threadIdx.x); i < count * merge_heads; i += block_threads) {
    const int k = i / merge_heads, head = i % merge_heads;
    if (head < heads) {
      weights[head * (count + 1) + k] = to.sums[(b * count + k) * to.heads + first + head];
    }
  }
  __syncthreads();
  const int head = static_cast<int>(threadIdx.x / warp_size),
            lane = static_cast<int>(threadIdx.x % warp_size);
  if (head >= heads) return;  // a whole warp
  T* const own = weights + head * (count + 1);
  T largest = minus_infinity<T>, sum(0);
  for (int k = lane; k < count; k += warp_size) largest = own[k] > largest ? own[k] : largest;
  largest = fold_warp(largest, [](T x, T y) { return y > x ? y : x; });
  const T shift = largest == minus_infinity<T> ? T(0) : largest;
  for (int k = lane; k < count; k += warp_size) {
    own[k] = std::exp((own[k] - shift) + to.rests[(b * count + k) * to.heads + first + head]);
    sum += own[k];
  }
  sum = fold_warp(sum, [](T x, T y) { return x + y; });
  __syncwarp();
  if (lane == 0) {
    to.put_lse(b, first + head,
               sum == T(0) ? LogSum<T>{largest, T(0)} : log_sum_of(shift, std::log(sum)));
  }
  const T inverse = sum == T(0) ? T(0) : T(1) / sum;
  for (std::int64_t column = lane; column < to.e; column += 4 * warp_size) {
    T total[4] = {};
    for (int k = 0; k < count; ++k) {
      const T* part = to.outputs + ((b * count + k) * to.heads + first + head) * to.e;
      const T weight = own[k] * inverse;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + 32 * j < to.e) total[j] += weight * part[column + 32 * j];
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + 32 * j < to.e) to.put_output(b, first + head, column + 32 * j, total[j]);
    }
  }
}

}  // namespace

template <class T>
void tpa_merge(const ForwardTarget<T>& to, const TpaBlocks& blocks, std::int64_t batch,
               const Queue& queue) {
  const dim3 grid(static_cast<unsigned>(batch), blocks_for(to.heads, merge_heads));
  run(queue, merge_blocks<T>, grid, block_threads,
      sizeof(T) * merge_heads * static_cast<std::size_t>(blocks.count + 1), to, blocks);
}
template void tpa_merge(const ForwardTarget<float>&, const TpaBlocks&, std::int64_t, const Queue&);
template void tpa_merge(const ForwardTarget<double>&, const TpaBlocks&, std::int64_t, const Queue&);

}  // namespace quipu::on_cuda
