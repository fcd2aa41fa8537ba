// Reading at indices, and the check of an embedding's indices. One thread an output element: it
// reads its index, checks it and moves one value; where rows behind the axis are dense and on
// 16-byte boundaries, the element is 16 bytes of a row. Values that keep their type are moved as
// bits. Bound by memory: the index and the output move once, x as far as it is named. An output
// whose index is out of range is 0, so that nothing undefined is read before the error.
//
// sass gather_bits<uint4>: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 32; shared 0
// sass .: forbid LD.E ST.E; registers 32; shared 0
#include <cstdint>
#include <string>

#include "index_check.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/element.cuh"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/ops/index/embedding_kernels.h"
#include "quipu/ops/index/gather_kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

enum { from_o, from_x, from_index };  // the views of a layout

/// The indices as kernels get them.
struct Indices {
  const void* data;
  DType dtype;
  std::int64_t size;        // of x along the axis
  std::int64_t own_stride;  // of an index with one dimension; 0: it has the shape of o
  std::int64_t first;       // the row-major position of the first one in its tensor
  IndexGuard guard;

  /// The index at an offset; -1 where it is out of range.
  __device__ __forceinline__ std::int64_t read(std::int64_t offset, std::uint32_t position) const {
    const auto index = load_element<std::int64_t>(data, dtype, offset);
    const std::int64_t own_position = first + (own_stride != 0 ? offset / own_stride : position);
    return index_is_valid(guard, index, size, own_position) ? index : -1;
  }
};

template <class Bits>
__global__ void __launch_bounds__(block_threads, 1)
    gather_bits(Walk<3> walk, std::uint32_t n, Bits* out, const Bits* x, std::int64_t step,
                Indices indices) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[3];
  walk.find(position, at);
  const std::int64_t index = indices.read(at[from_index], position);
  Bits value{};
  if (index >= 0) value = x[at[from_x] + index * step];
  out[at[from_o]] = value;
}

template <class T>
__global__ void __launch_bounds__(block_threads, 1)
    gather_values(Walk<3> walk, std::uint32_t n, void* out, DType out_type, bool add, const void* x,
                  DType x_type, std::int64_t step, Indices indices) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[3];
  walk.find(position, at);
  const std::int64_t index = indices.read(at[from_index], position);
  T value(0);
  if (index >= 0) value = load_element<T>(x, x_type, at[from_x] + index * step);
  put_element(out, out_type, at[from_o], value, add);
}

/// The arguments of a call, and strides over the shape of o; that of x along the axis is 0.
struct Call {
  const View& x;
  const View& index;
  const Target& o;
  Layout<3> layout;
  std::int64_t step;  // of x along the axis
  std::int64_t own_stride;
  Queue queue;
  IndexGuard guard;

  Call(const View& x_view, const View& index_view, const Grad& to, const Strides& index_strides,
       int axis, bool one_dimension)
      : x(x_view),
        index(index_view),
        o(to),
        step(x_view.stride(axis)),
        own_stride(one_dimension ? index_view.stride(0) : 0),
        queue(to.view),
        guard(index_guard(queue, index_view, x_view.size(axis), axis)) {
    size_ = x_view.size(axis);
    Strides x_strides = x.strides;
    x_strides[axis] = 0;
    layout = {o.view.shape, {o.view.strides, x_strides, index_strides}};
  }

  Indices indices(const Layout<3>& part) const {
    const std::int64_t skipped = part.starts[from_index];
    return {address(index, skipped),
            index.dtype,
            size_,
            own_stride,
            own_stride != 0 ? skipped / own_stride : part.first,
            guard};
  }

  /// Moves elements, or vectors of them, as `Bits`.
  template <class Bits>
  void run_bits(const Layout<3>& all, std::int64_t axis_step) const {
    all.merged(false).for_each_part([&](const Layout<3>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, gather_bits<Bits>, blocks_for(n), block_threads, 0, Walk<3>(part), n,
          o.view.as<Bits>() + part.starts[from_o], x.as<const Bits>() + part.starts[from_x],
          axis_step, indices(part));
    });
  }

  template <class T>
  void run_values() const {
    layout.merged(false).for_each_part([&](const Layout<3>& part) {
      const auto n = static_cast<std::uint32_t>(numel(part.shape));
      run(queue, gather_values<T>, blocks_for(n), block_threads, 0, Walk<3>(part), n,
          address(o.view, part.starts[from_o]), o.view.dtype, o.add,
          address(x, part.starts[from_x]), x.dtype, step, indices(part));
    });
  }

  void run_elements() const {
    if (!o.add && x.dtype == o.view.dtype) {
      switch (size_of(x.dtype)) {
        case 1: return run_bits<std::uint8_t>(layout, step);
        case 2: return run_bits<std::uint16_t>(layout, step);
        case 4: return run_bits<std::uint32_t>(layout, step);
        default: return run_bits<std::uint64_t>(layout, step);
      }
    }
    switch (compute_type(x.dtype)) {
      case DType::f64: return run_values<double>();
      case DType::f32: return run_values<float>();
      default: return run_values<std::int64_t>();
    }
  }

  /// The layout in units of 16 bytes; without dimensions where rows are not so aligned.
  Layout<3> in_vectors(std::int64_t& axis_step) const {
    const auto width = static_cast<std::int64_t>(16 / size_of(x.dtype));
    Layout<3> result = layout.merged(false);
    const int last = result.shape.size() - 1;
    const auto aligned = [](const View& v) {
      return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0;
    };
    bool fits = !o.add && x.dtype == o.view.dtype && aligned(x) && aligned(o.view) &&
                step % width == 0 && result.shape[last] % width == 0 &&
                result.strides[from_o][last] == 1 && result.strides[from_x][last] == 1 &&
                result.strides[from_index][last] == 0;
    for (const int v : {from_o, from_x}) {
      auto& strides = result.strides[static_cast<std::size_t>(v)];
      for (int d = 0; d < last; ++d) {
        fits = fits && strides[d] % width == 0;
        strides[d] /= width;
      }
    }
    if (!fits) return {};
    result.shape[last] /= width;
    axis_step = step / width;
    return result;
  }

 private:
  std::int64_t size_;
};

void gather(View x, View index, Target o, int axis) {
  if (o.view.numel() == 0) return;
  Call(x, index, o, index.strides, axis, false).run_elements();
}

void index_select(View x, View index, View o, int axis) {
  if (o.numel() == 0) return;
  Strides along = Dims::filled(o.dim(), 0);
  along[axis] = index.stride(0);
  const Grad to = Target::write_to(o);
  const Call call(x, index, to, along, axis, true);
  std::int64_t step = 0;
  const Layout<3> vectors = call.in_vectors(step);
  if (vectors.shape.empty()) return call.run_elements();
  call.run_bits<uint4>(vectors, step);
}

__global__ void __launch_bounds__(block_threads, 1)
    check_elements(Walk<1> walk, std::uint32_t n, std::int64_t first, const void* data, DType dtype,
                   std::int64_t size, IndexGuard guard) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[1];
  walk.find(position, at);
  index_is_valid(guard, load_element<std::int64_t>(data, dtype, at[0]), size, first + position);
}

void check_rows(View indices, std::int64_t rows) {
  if (indices.numel() == 0) return;
  const Queue queue(indices);
  const IndexGuard guard = index_guard(
      queue, indices, {"indices", ", but weight has " + std::to_string(rows) + " rows"});
  const Layout<1> layout = Layout<1>{indices.shape, {indices.strides}}.merged(false);
  layout.for_each_part([&](const Layout<1>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    run(queue, check_elements, blocks_for(n), block_threads, 0, Walk<1>(part), n, part.first,
        address(indices, part.starts[0]), indices.dtype, rows, guard);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_gather() {
  gather_kernel.provide(Variant::cuda, on_cuda::gather);
  index_select_kernel.provide(Variant::cuda, on_cuda::index_select);
  embedding_check_kernel.provide(Variant::cuda, on_cuda::check_rows);
}

}  // namespace quipu::detail
