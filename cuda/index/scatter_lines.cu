// Adding (or multiplying, or comparing) at indices that each line has for itself. Every destination
// has one owner, which adds to the old value in the order of the axis, in the compute type, and
// rounds once: no atomics, same bits always.
// - Short lines: one thread an entry. The first entry of a destination adds all.
// - Long lines: a block owns 256 destinations of a line, one a thread; entries in its range go
//   through shared memory, and each thread picks its own.
// Bound by the indices, which are read once an entry, or once for every 256 destinations.
//
// sass add_(short|long)_lines: forbid LD.E ST.E; registers 64; shared 3104
#include <algorithm>

#include "quipu/cuda/tile/functions.cuh"
#include "scatter.cuh"

namespace quipu::detail::on_cuda {
namespace {

using Lines = ScatterLines;
using enum ScatterLines::From;

constexpr std::int64_t short_length = 128;
constexpr unsigned warps = block_threads / warp_size;

/// A sum, or what a join says.
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return wrapping_sum(a, b);
  }
};
template <Join join>
struct Joined {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    if constexpr (join == Join::mul) return static_cast<T>(Wrapping<T>(a) * Wrapping<T>(b));
    if constexpr (join == Join::max) return math::maximum(a, b);
    return math::minimum(a, b);
  }
};

/// Thread (line, k).
template <class T, class Op>
__global__ void __launch_bounds__(block_threads, 1) add_short_lines(Lines lines) {
  const std::uint32_t line = blockIdx.x * block_threads + threadIdx.x;
  const std::int64_t own = blockIdx.y;
  if (line >= lines.count) return;
  std::int64_t at[3];
  lines.walk.find(line, at);
  const std::int64_t destination = lines.index_at(at[from_index], own);
  if (!lines.is_valid(destination, line, own)) return;
  for (std::int64_t k = 0; k < own; ++k) {
    if (lines.index_at(at[from_index], k) == destination) return;
  }
  const std::int64_t target = at[from_o] + destination * lines.o_step;
  T sum = load_element<T>(lines.o, lines.o_type, target);
  for (std::int64_t k = own; k < lines.length; ++k) {
    if (lines.index_at(at[from_index], k) != destination) continue;
    sum = Op{}(sum, load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step));
  }
  store_element(lines.o, lines.o_type, target, sum);
}

template <class T, class Op>
__global__ void __launch_bounds__(block_threads, 1) add_long_lines(Lines lines) {
  __shared__ T values[block_threads];
  __shared__ std::uint32_t destinations[block_threads];
  __shared__ unsigned scratch[warps];
  const std::int64_t low = static_cast<std::int64_t>(blockIdx.x) * block_threads;
  const std::int64_t own = low + threadIdx.x;
  for (std::uint32_t line = blockIdx.y; line < lines.count; line += gridDim.y) {
    std::int64_t at[3];
    lines.walk.find(line, at);
    const std::int64_t target = at[from_o] + own * lines.o_step;
    T sum(0);
    bool opened = false;
    for (std::int64_t base = 0; base < lines.length; base += block_threads) {
      const std::int64_t k = base + threadIdx.x;
      std::int64_t destination = -1;
      if (k < lines.length) {
        destination = lines.index_at(at[from_index], k);
        if (blockIdx.x == 0) lines.is_valid(destination, line, k);
      }
      const bool mine =
          destination >= low && destination < min(lines.destinations, low + block_threads);
      const Slots slots = slots_in_order<block_threads>(mine, scratch);
      if (mine) {
        destinations[slots.own] = static_cast<std::uint32_t>(destination - low);
        values[slots.own] = load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step);
      }
      __syncthreads();
      for (unsigned i = 0; i < slots.total; ++i) {
        if (destinations[i] != threadIdx.x) continue;
        if (!opened) sum = load_element<T>(lines.o, lines.o_type, target);
        opened = true;
        sum = Op{}(sum, values[i]);
      }
      __syncthreads();
    }
    if (opened) store_element(lines.o, lines.o_type, target, sum);
  }
}

template <class T, class Op>
void run_lines(const Queue& queue, const Lines& lines) {
  if (lines.length <= short_length) {
    const dim3 grid(blocks_for(lines.count), static_cast<unsigned>(lines.length));
    return run(queue, add_short_lines<T, Op>, grid, block_threads, 0, lines);
  }
  const dim3 grid(blocks_for(lines.destinations), std::min(lines.count, most_rows_of_blocks));
  run(queue, add_long_lines<T, Op>, grid, block_threads, 0, lines);
}

}  // namespace

void add_lines(const Queue& queue, const ScatterLines& lines) {
  with_compute_type(compute_type(lines.o_type),
                    [&]<class T>(T) { run_lines<T, Sum>(queue, lines); });
}

void join_lines(const Queue& queue, const ScatterLines& lines, Join join) {
  with_compute_type(compute_type(lines.o_type), [&]<class T>(T) {
    switch (join) {
      case Join::mul: return run_lines<T, Joined<Join::mul>>(queue, lines);
      case Join::max: return run_lines<T, Joined<Join::max>>(queue, lines);
      case Join::min: return run_lines<T, Joined<Join::min>>(queue, lines);
    }
  });
}

}  // namespace quipu::detail::on_cuda
