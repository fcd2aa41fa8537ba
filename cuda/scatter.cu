// Adding at indices. Every destination has one owner, which adds what goes there in the order of
// the axis, from the value that lies there, in the compute type, and rounds once: no atomics, same
// bits always. Three ways, chosen by shape:
// - One index for many lines side by side: scatter_rows.cu.
// - Short lines with own indices: one thread an entry. The first entry of each place adds up all.
// - Long lines with own indices: a block owns 256 places of a line, one a thread; entries in its
//   range go through shared memory, and each thread picks its own.
// Bound by the indices, which are read as often as a line is long, or as it has 256 places.
//
// sass add_(short|long)_lines: forbid LD.E ST.E; registers 64; shared 3104
#include <algorithm>

#include "quipu/ops/gather_kernels.h"
#include "quipu/ops/pointwise_kernels.h"
#include "scatter.cuh"

namespace quipu {
namespace on_cuda {
namespace {

using Lines = ScatterLines;
using enum ScatterLines::From;

constexpr std::int64_t short_length = 128;
constexpr unsigned warps = block_threads / warp_size;

/// Thread (line, k).
template <class T>
__global__ void __launch_bounds__(block_threads, 1) add_short_lines(Lines lines) {
  const std::uint32_t line = blockIdx.x * block_threads + threadIdx.x;
  const std::int64_t own = blockIdx.y;
  if (line >= lines.count) return;
  std::int64_t at[3];
  lines.walk.find(line, at);
  const std::int64_t place = lines.index_at(at[from_index], own);
  if (!lines.is_valid(place, line, own)) return;
  for (std::int64_t k = 0; k < own; ++k) {
    if (lines.index_at(at[from_index], k) == place) return;
  }
  const std::int64_t target = at[from_o] + place * lines.o_step;
  T sum = load_element<T>(lines.o, lines.o_type, target);
  for (std::int64_t k = own; k < lines.length; ++k) {
    if (lines.index_at(at[from_index], k) != place) continue;
    sum = wrapping_sum(sum, load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step));
  }
  store_element(lines.o, lines.o_type, target, sum);
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1) add_long_lines(Lines lines) {
  __shared__ T values[block_threads];
  __shared__ std::uint32_t places[block_threads];
  __shared__ unsigned room[warps];
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
      std::int64_t place = -1;
      if (k < lines.length) {
        place = lines.index_at(at[from_index], k);
        if (blockIdx.x == 0) lines.is_valid(place, line, k);
      }
      const bool mine = place >= low && place < min(lines.places, low + block_threads);
      const Slots slots = slots_in_order<block_threads>(mine, room);
      if (mine) {
        places[slots.own] = static_cast<std::uint32_t>(place - low);
        values[slots.own] = load_element<T>(lines.x, lines.x_type, at[from_x] + k * lines.x_step);
      }
      __syncthreads();
      for (unsigned i = 0; i < slots.total; ++i) {
        if (places[i] != threadIdx.x) continue;
        if (!opened) sum = load_element<T>(lines.o, lines.o_type, target);
        opened = true;
        sum = wrapping_sum(sum, values[i]);
      }
      __syncthreads();
    }
    if (opened) store_element(lines.o, lines.o_type, target, sum);
  }
}

template <class T>
void run_lines(const Queue& queue, const Lines& lines) {
  if (lines.length <= short_length) {
    const dim3 grid(blocks_for(lines.count), static_cast<unsigned>(lines.length));
    return run(queue, add_short_lines<T>, grid, block_threads, 0, lines);
  }
  const dim3 grid(blocks_for(lines.places), std::min(lines.count, most_rows_of_blocks));
  run(queue, add_long_lines<T>, grid, block_threads, 0, lines);
}

/// `index` is the tensor of indices; `index_strides` are its strides over the shape of x.
void scatter(const View& o, const View& index, const Strides& index_strides, const View& x,
             int axis, bool one_index) {
  if (x.numel() == 0) return;
  const Queue queue(o);
  Layout<3> all{x.shape, {x.strides, index_strides, o.strides}};
  std::int64_t inner = 1;
  for (int d = axis + 1; d < x.dim(); ++d) inner *= x.size(d);
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const IndexGuard guard = index_guard(queue, index, o.size(axis), axis);
  // Few lines do not fill a warp.
  const bool by_rows = one_index && numel(all.shape) >= 8;
  all.merged(false).for_each_part([&](const Layout<3>& part) {
    const Lines lines{Walk<3>(part),
                      static_cast<std::uint32_t>(numel(part.shape)),
                      x.size(axis),
                      o.size(axis),
                      address(x, part.starts[from_x]),
                      address(index, part.starts[from_index]),
                      address(o, part.starts[from_o]),
                      x.dtype,
                      index.dtype,
                      o.dtype,
                      x.stride(axis),
                      index_strides[axis],
                      o.stride(axis),
                      part.first,
                      inner,
                      one_index,
                      guard};
    if (by_rows) return add_rows(queue, lines);
    with_compute_type(compute_type(o.dtype), [&]<class T>(T) { run_lines<T>(queue, lines); });
  });
}

void scatter_add(View o, View index, View x, int axis) {
  scatter(o, index, index.strides, x, axis, false);
}

void index_add(View o, View index, View x, int axis) {
  Strides along = Dims::filled(x.dim(), 0);
  along[axis] = index.stride(0);
  scatter(o, index, along, x, axis, true);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_scatter() {
  scatter_add_kernel.provide(DeviceKind::cuda, on_cuda::scatter_add);
  index_add_kernel.provide(DeviceKind::cuda, on_cuda::index_add);
}

}  // namespace quipu
