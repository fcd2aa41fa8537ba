// fill, copy, add into, find nonfinite elements, ramp. Each element is read or written once, by a
// thread of its own; copies that keep the type move bits. Bound by memory.
//
// sass .: forbid LD.E ST.E; registers 32; shared 0
#include <cmath>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/cuda/runtime/register.h"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/element.cuh"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

/// Calls f with an unsigned number as wide as an element of `dtype`.
template <class F>
void with_bits_of(DType dtype, F f) {
  switch (size_of(dtype)) {
    case 1: return f(std::uint8_t{});
    case 2: return f(std::uint16_t{});
    case 4: return f(std::uint32_t{});
    default: return f(std::uint64_t{});
  }
}

/// A merged layout of one view; its positions stay in row-major order.
Layout<1> row_major(const View& v) {
  return Layout<1>{v.shape, {v.strides}}.merged(false);
}

template <class Bits>
__global__ void __launch_bounds__(block_threads, 1)
    copy_bits(Walk<2> walk, std::uint32_t n, Bits* out, const Bits* in) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[2];
  walk.find(position, at);
  out[at[0]] = in[at[1]];
}

void copy(View o, View x) {
  if (o.numel() == 0) return;
  if (o.dtype != x.dtype) return pointwise_kernel(Target::write_to(o), Pointwise::copy, {x});
  const Queue queue(o);
  const Layout<2> layout = Layout<2>{o.shape, {o.strides, x.strides}}.merged();
  if (layout.shape.size() == 1 && layout.strides[0][0] == 1 && layout.strides[1][0] == 1) {
    const auto bytes = static_cast<std::size_t>(o.numel()) * size_of(o.dtype);
    check_cuda(cudaMemcpyAsync(o.data, x.data, bytes, cudaMemcpyDeviceToDevice, queue.stream),
               "cudaMemcpyAsync (on the device)");
    return;
  }
  with_bits_of(o.dtype, [&]<class Bits>(Bits) {
    layout.for_each_part([&](const Layout<2>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, copy_bits<Bits>, blocks_for(n), block_threads, 0, Walk<2>(part), n,
          o.as<Bits>() + part.starts[0], x.as<const Bits>() + part.starts[1]);
    });
  });
}

/// start + step * position; whole numbers are exact.
template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    ramp_elements(Walk<1> walk, std::uint32_t n, void* out, DType dtype, T start, T step) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[1];
  walk.find(position, at);
  store_element(out, dtype, at[0], step == T(0) ? start : start + step * static_cast<T>(position));
}

template <class T>
void run_ramp(const View& o, T start, T step) {
  const Queue queue(o);
  row_major(o).for_each_part([&](const Layout<1>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    run(queue, ramp_elements<T>, blocks_for(n), block_threads, 0, Walk<1>(part), n,
        address(o, part.starts[0]), o.dtype, start + step * static_cast<T>(part.first), step);
  });
}

void fill(View o, Scalar value) {
  if (o.numel() == 0) return;
  if (value.is_real() ? value.real() == 0 && !std::signbit(value.real()) : value.whole() == 0) {
    const Layout<1> layout = Layout<1>{o.shape, {o.strides}}.merged();
    if (layout.shape.size() == 1 && layout.strides[0][0] == 1) {
      check_cuda(cudaMemsetAsync(o.data, 0, static_cast<std::size_t>(o.numel()) * size_of(o.dtype),
                                 Queue(o).stream),
                 "cudaMemsetAsync");
      return;
    }
  }
  if (value.is_real()) {
    run_ramp<double>(o, value.real(), 0);
  } else {
    run_ramp<std::int64_t>(o, value.whole(), 0);
  }
}

void ramp(View o, double start, double step) {
  if (o.numel() > 0) run_ramp<double>(o, start, step);
}

void add_into(Grad g, View x) {
  if (g.view.shape == x.shape) {
    pointwise_kernel(g, Pointwise::copy, {x});
  } else {
    pointwise_sum_kernel(g, Pointwise::copy, {x}, x.shape, 1.0);
  }
}

/// The lowest position, whatever the order of threads.
__global__ void __launch_bounds__(block_threads, 1)
    find_nonfinite_elements(Walk<1> walk, std::uint32_t n, const void* data, DType dtype,
                            unsigned long long first, unsigned long long* lowest) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[1];
  walk.find(position, at);
  if (!isfinite(load_element<double>(data, dtype, at[0]))) atomicMin(lowest, first + position);
}

void find_nonfinite(View x, View first_bad) {
  *first_bad.as<std::int64_t>() = -1;
  if (x.numel() == 0 || !is_floating(x.dtype)) return;
  const Queue queue(x);
  {
    const Scratch scratch(queue);
    auto* lowest = static_cast<unsigned long long*>(scratch.data());
    check_cuda(cudaMemsetAsync(lowest, 0xff, sizeof *lowest, queue.stream), "cudaMemsetAsync");
    row_major(x).for_each_part([&](const Layout<1>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, find_nonfinite_elements, blocks_for(n), block_threads, 0, Walk<1>(part), n,
          address(x, part.starts[0]), x.dtype, static_cast<unsigned long long>(part.first), lowest);
    });
    check_cuda(cudaMemcpyAsync(first_bad.data, lowest, sizeof *lowest, cudaMemcpyDeviceToHost,
                               queue.stream),
               "cudaMemcpyAsync (to the host)");
  }
  synchronize(queue.device);  // all bits set is -1: none
}

}  // namespace
}  // namespace on_cuda

void register_cuda_basic() {
  on_cuda::register_runtime();
  fill_kernel.provide(Variant::cuda, on_cuda::fill);
  copy_kernel.provide(Variant::cuda, on_cuda::copy);
  add_into_kernel.provide(Variant::cuda, on_cuda::add_into);
  find_nonfinite_kernel.provide(Variant::cuda, on_cuda::find_nonfinite);
  ramp_kernel.provide(Variant::cuda, on_cuda::ramp);
}

}  // namespace quipu::detail
