// Running sums, in f64 (whole numbers: i64, wrapping), rounded once. Lines side by side have a
// thread each, which goes along the axis; lines along the dense dimension have a block each, which
// takes 16 bytes, wherever it begins (or four entries) a thread at a time: they are summed by the
// thread, by its warp and by the block, and the total is carried on. Read and written once: bound
// by memory where there are enough lines.
//
// sass sum_packed_lines: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 64; shared 64
// sass sum_l(ong_lines|ines_aside): forbid LD.E ST.E; registers 48; shared 8256
#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/reduce/kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_x, from_o };

struct Sums {
  Walk<2> walk;
  std::uint32_t lines;
  std::int64_t length;
  void* x;  // the first entry in the order of the sum
  DType x_type;
  std::int64_t x_step;
  void* o;
  DType o_type;
  std::int64_t o_step;
  bool add;
};

template <class T>
__global__ void __launch_bounds__(block_threads, 1) sum_lines_aside(Sums s) {
  const std::uint32_t line = blockIdx.x * block_threads + threadIdx.x;
  if (line >= s.lines) return;
  std::int64_t at[2];
  s.walk.find(line, at);
  T sum(0);
  for (std::int64_t k = 0; k < s.length; ++k) {
    sum = wrapping_sum(sum, load_element<T>(s.x, s.x_type, at[from_x] + k * s.x_step));
    put_element(s.o, s.o_type, at[from_o] + k * s.o_step, sum, s.add);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1) sum_long_lines(Sums s) {
  constexpr int own = 4;
  __shared__ T scratch[block_threads / warp_size];
  __shared__ T entries[own * block_threads];
  std::int64_t at[2];
  s.walk.find(blockIdx.x, at);
  T carried(0);
  for (std::int64_t base = 0; base < s.length; base += own * block_threads) {
    // Neighbouring threads move neighbouring entries; each sums four in a row.
    for (unsigned i = threadIdx.x; i < own * block_threads; i += block_threads) {
      const std::int64_t k = base + i;
      entries[i] = k < s.length ? load_element<T>(s.x, s.x_type, at[from_x] + k * s.x_step) : T(0);
    }
    __syncthreads();
    T sums[own];
    T sum(0);
    for (int j = 0; j < own; ++j) sums[j] = sum = wrapping_sum(sum, entries[threadIdx.x * own + j]);
    T total;
    const T before = wrapping_sum(carried, sum_before<block_threads>(sum, scratch, total));
    for (int j = 0; j < own; ++j) entries[threadIdx.x * own + j] = wrapping_sum(before, sums[j]);
    carried = wrapping_sum(carried, total);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < own * block_threads; i += block_threads) {
      const std::int64_t k = base + i;
      if (k < s.length) put_element(s.o, s.o_type, at[from_o] + k * s.o_step, entries[i], s.add);
    }
    __syncthreads();
  }
}

/// The same for rows that move 16 bytes at a time. A sum from the end takes the last 16 bytes
/// first.
template <class E>
__global__ void __launch_bounds__(block_threads, 4) sum_packed_lines(Sums s, bool reverse) {
  using Chunk = Packed<double, E>;
  constexpr int count = Chunk::count;
  __shared__ double scratch[block_threads / warp_size];
  std::int64_t at[2];
  s.walk.find(blockIdx.x, at);
  const ChunkedRow<Chunk> x(s.x, s.x_type, at[from_x], 1, s.length);
  const ChunkedRow<Chunk> o(s.o, s.o_type, at[from_o], 1, s.length);
  const std::int64_t chunks = x.chunks();
  double carried = 0;
  for (std::int64_t base = 0; base < chunks; base += block_threads) {
    const std::int64_t c = base + threadIdx.x;
    const std::int64_t k = x.first(0) + (reverse ? chunks - 1 - c : c) * count;
    double values[count] = {}, sum = 0;
    if (c < chunks) x.load(k, values);
    if (reverse) {
      for (int j = count - 1; j >= 0; --j) values[j] = sum += values[j];
    } else {
      for (int j = 0; j < count; ++j) values[j] = sum += values[j];
    }
    double total;
    const double before = carried + sum_before<block_threads>(sum, scratch, total);
    for (int j = 0; j < count; ++j) values[j] += before;
    if (c < chunks) o.put(k, values, s.add);
    carried += total;
  }
}

void cumsum(View x, Target o, int axis, bool reverse) {
  if (x.numel() == 0) return;
  const Queue queue(x);
  Layout<2> all{x.shape, {x.strides, o.view.strides}};
  all.shape.erase(axis);
  for (Strides& s : all.strides) s.erase(axis);
  const std::int64_t length = x.size(axis);
  const bool aside = length <= 32 || (std::abs(x.stride(axis)) != 1 && numel(all.shape) >= 256);
  const bool packed = !aside && x.dtype == o.view.dtype && has_chunked_rows(x, axis) &&
                      has_chunked_rows(o.view, axis) && begin_alike(x, o.view, axis);
  const bool backwards = reverse && !packed;
  const std::int64_t start = backwards ? length - 1 : 0, sign = backwards ? -1 : 1;
  all.merged().for_each_part([&](const Layout<2>& part) {
    const Sums s{Walk<2>(part),
                 static_cast<std::uint32_t>(numel(part.shape)),
                 length,
                 address(x, part.starts[from_x] + start * x.stride(axis)),
                 x.dtype,
                 sign * x.stride(axis),
                 address(o.view, part.starts[from_o] + start * o.view.stride(axis)),
                 o.view.dtype,
                 sign * o.view.stride(axis),
                 o.add};
    if (packed) {
      return with_packed(x.dtype, [&]<class T, class E>(Packed<T, E>) {
        run(queue, sum_packed_lines<E>, s.lines, block_threads, 0, s, reverse);
      });
    }
    with_compute_type(is_floating(x.dtype) ? f64 : i64, [&]<class T>(T) {
      if constexpr (!std::is_same_v<T, float>) {
        if (aside) return run(queue, sum_lines_aside<T>, blocks_for(s.lines), block_threads, 0, s);
        run(queue, sum_long_lines<T>, s.lines, block_threads, 0, s);
      }
    });
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_cumsum() {
  cumsum_kernel.provide(Variant::cuda, on_cuda::cumsum);
}

}  // namespace quipu::detail
