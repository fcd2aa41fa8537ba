// o (=|+=) f(operands): the entry, which chooses a kernel. Dimensions are merged; where all views
// have one type and are dense along the last dimension (or broadcast one element there), 128 bits
// move at a time, else single elements. Dense casts have a kernel of their own, a group of elements
// a thread.
//
// sass cast_groups: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 40; shared 0
#include "pointwise.cuh"

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/groups.cuh"

namespace quipu::detail {
namespace on_cuda {

namespace {

template <class T, int count>
__global__ void __launch_bounds__(block_threads, 1)
    cast_groups(std::uint32_t n, Output out, const void* x, DType x_type) {
  const std::int64_t group = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (group * count >= n) return;
  T values[count];
  load_group(x, x_type, group, n, values);
  if (out.add) {
    T old[count];
    load_group(out.data, out.dtype, group, n, old);
    for (int j = 0; j < count; ++j) values[j] = wrapping_sum(old[j], values[j]);
  }
  store_group(out.data, out.dtype, group, n, values);
}

/// A cast between dense views, `count` elements a thread; T holds the sum where the output is added
/// to.
template <class T, int count>
bool run_casts(const Queue& queue, const Target& o, Pointwise f, const Operands& in,
               const Layout<4>& layout) {
  if (f != Pointwise::copy || in[0].is_scalar || layout.shape.size() != 1) return false;
  const View& x = in[0].view;
  const std::int64_t n = layout.shape[0];
  const bool dense = layout.strides[0][0] == 1 && layout.strides[1][0] == 1 &&
                     is_group_aligned(o.view.data, o.view.dtype, count) &&
                     is_group_aligned(x.data, x.dtype, count);
  const bool holds_sum = !o.add || compute_type(o.view.dtype) == dtype_of<T>;
  if (!dense || !holds_sum || n >= std::int64_t{1} << 31) return false;
  run(queue, cast_groups<T, count>, blocks_for(n, block_threads * count), block_threads, 0,
      static_cast<std::uint32_t>(n), Output{o.view.data, o.view.dtype, o.add}, x.data, x.dtype);
  return true;
}

template <class T>
void run_elements(const Queue& queue, const Target& o, Pointwise f, const Operands& in,
                  const Layout<4>& layout) {
  const MapKernel<T> kernel = map_kernel_for<T>(f);
  ensure(kernel != nullptr, "pointwise function ", static_cast<int>(f),
         " has no whole-number version");
  layout.for_each_part([&](const Layout<4>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    const Output out{address(o.view, part.starts[0]), o.view.dtype, o.add};
    run(queue, kernel, blocks_for(n), block_threads, 0, Walk<4>(part), n, out,
        sources_of<T>(in, part));
  });
}

/// The layout in units of vectors of `count` elements, if all views allow it.
bool in_vectors(const Target& o, const Operands& in, Layout<4>& layout, std::int64_t count) {
  const int last = layout.shape.size() - 1;
  if (layout.shape[last] % count != 0 || layout.strides[0][last] != 1) return false;
  for (int v = 0; v < 4; ++v) {
    if (v > in.count || (v > 0 && in[v - 1].is_scalar)) continue;
    const View& view = v == 0 ? o.view : in[v - 1].view;
    Strides& strides = layout.strides[static_cast<std::size_t>(v)];
    if (view.dtype != o.view.dtype || strides[last] < 0 || strides[last] > 1) return false;
    if (strides[last] == 0) continue;
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 != 0) return false;
    for (int d = 0; d < last; ++d) {
      if (strides[d] % count != 0) return false;
      strides[d] /= count;
    }
  }
  layout.shape[last] /= count;
  return true;
}

template <class E, class T>
bool run_vectors(const Queue& queue, const Target& o, Pointwise f, const Operands& in,
                 Layout<4> layout) {
  const VectorKernel<T> kernel = vector_kernel_for<E, T>(f);
  constexpr std::int64_t count = 16 / static_cast<std::int64_t>(sizeof(E));
  if (!kernel || !in_vectors(o, in, layout, count)) return false;
  if (numel(layout.shape) >= std::int64_t{1} << 31) return false;
  const auto vectors = static_cast<std::uint32_t>(numel(layout.shape));
  run(queue, kernel, blocks_for(vectors), block_threads, 0, Walk<4>(layout), vectors, o.view.data,
      sources_of<T>(in, layout), o.add);
  return true;
}

template <class T>
bool run_vectors_of(const Queue& queue, const Target& o, Pointwise f, const Operands& in,
                    const Layout<4>& layout) {
  if constexpr (std::is_same_v<T, float>) {
    if (o.view.dtype == DType::bf16) return run_vectors<__nv_bfloat16, T>(queue, o, f, in, layout);
    if (o.view.dtype == DType::f16) return run_vectors<__half, T>(queue, o, f, in, layout);
  }
  return o.view.dtype == dtype_of<T> && run_vectors<T, T>(queue, o, f, in, layout);
}

void pointwise(Target o, Pointwise f, const Operands& in) {
  if (o.view.numel() == 0) return;
  const Queue queue(o.view);
  const Layout<4> layout =
      Layout<4>{o.view.shape, pointwise_strides(o.view, in, o.view.shape)}.merged();
  with_compute_type(pointwise_type(o.view, f, in), [&]<class T>(T) {
    if (run_vectors_of<T>(queue, o, f, in, layout)) return;
    // Two elements a thread where the output is wider than T: neighbours fill whole sectors.
    const bool widens = size_of(o.view.dtype) > sizeof(T);
    if (widens ? run_casts<T, 2>(queue, o, f, in, layout)
               : run_casts<T, group_size<T>>(queue, o, f, in, layout)) {
      return;
    }
    run_elements<T>(queue, o, f, in, layout);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_pointwise() {
  pointwise_kernel.provide(Variant::cuda, on_cuda::pointwise);
}

}  // namespace quipu::detail
