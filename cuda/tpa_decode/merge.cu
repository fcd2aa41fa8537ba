// Split-K reductions of tensor product attention. Forward (flash decoding): where entries are split
// among blocks, their outputs are combined with weights from their log-sum-exps; a warp has a head
// and goes along the columns. Backward: partial gradients of aq and bq are added, a thread an
// element. Partial results are read once, in order. Bound by memory.
//
// sass (merge|add)_blocks: forbid STL LDL LD.E$ ST.E$; registers 64
#include <cmath>

#include "quipu/cuda/runtime/run.h"
#include "tpa_decode.cuh"

namespace quipu::detail::on_cuda {
namespace {

constexpr int merge_heads = 8;  // a warp each

/// A block has a batch entry and some heads: o and lse from the partial ones.
template <class T>
__global__ void __launch_bounds__(block_threads, 4)
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
  T largest = std::numeric_limits<T>::lowest(), sum(0);
  for (int k = lane; k < count; k += warp_size) largest = own[k] > largest ? own[k] : largest;
  largest = fold_warp(largest, [](T x, T y) { return y > x ? y : x; });
  for (int k = lane; k < count; k += warp_size) {
    own[k] = std::exp((own[k] - largest) + to.rests[(b * count + k) * to.heads + first + head]);
    sum += own[k];
  }
  sum = fold_warp(sum, [](T x, T y) { return x + y; });
  __syncwarp();
  if (lane == 0) to.put_lse(b, first + head, log_sum_of(largest, std::log(sum)));
  const T inverse = sum == T(0) ? to.without_weights : T(1) / sum;
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

/// Split-K reduction: the gradient of aq or bq (=|+=) the sum of the partial sums of `count`
/// blocks, in order.
template <class T>
__global__ void __launch_bounds__(block_threads)
    add_blocks(FactorGrad to, std::int64_t rows, std::int64_t columns, const T* parts,
               std::int64_t count, std::int64_t part_size) {
  const std::int64_t i = std::int64_t{blockIdx.x} * block_threads + threadIdx.x, b = blockIdx.y;
  if (i >= rows * columns) return;
  T sum(0);
  for (std::int64_t k = 0; k < count; ++k) sum += parts[(b * count + k) * part_size + i];
  to.put(to.row(b, i / columns), i % columns, sum);
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

template <class T>
void tpa_add_blocks(const Grad& g, const View& partial, std::int64_t start, std::int64_t count) {
  if (!g.wanted() || g.view.numel() == 0) return;
  const std::int64_t rows = g.view.size(1), columns = g.view.size(2);
  const dim3 grid(blocks_for(rows * columns), static_cast<unsigned>(g.view.size(0)));
  on_cuda::run(Queue(g.view), add_blocks<T>, grid, block_threads, 0, FactorGrad(g), rows, columns,
               partial.as<T>() + start, count, partial.size(2));
}
template void tpa_add_blocks<float>(const Grad&, const View&, std::int64_t, std::int64_t);
template void tpa_add_blocks<double>(const Grad&, const View&, std::int64_t, std::int64_t);

}  // namespace quipu::detail::on_cuda
