// o (=|+=) f(operands): which kernel runs, and over what. Dimensions are merged; where all views
// have one type and lie densely along the last dimension (or repeat one element there), 128 bits
// move at a time, else single elements. Threads are cut by the shape alone.
#include "pointwise.cuh"

#include "runtime/run.h"

namespace quipu {
namespace on_cuda {

DType pointwise_type(const Operands& in) {
  DType widest = DType::i64;
  bool fraction = false;
  for (int i = 0; i < in.count; ++i) {
    if (in[i].is_scalar) {
      fraction |= in[i].value.is_real() && std::trunc(in[i].value.real()) != in[i].value.real();
    } else {
      const DType type = compute_type(in[i].view.dtype);
      widest = type < widest ? type : widest;
    }
  }
  return widest == DType::i64 && fraction ? DType::f64 : widest;
}

Layout<4> pointwise_layout(const View& o, const Operands& in, const Shape& over) {
  Layout<4> layout;
  layout.shape = over;
  layout.strides[0] = broadcast_strides(o.shape, o.strides, over);
  for (int i = 0; i < 3; ++i) {
    const bool is_view = i < in.count && !in[i].is_scalar;
    layout.strides[static_cast<std::size_t>(i) + 1] =
        is_view ? broadcast_strides(in[i].view.shape, in[i].view.strides, over)
                : Dims::filled(over.size(), 0);
  }
  return layout;
}

namespace {

/// A plain copy of small whole numbers to a floating type goes through f64, which holds them all.
DType type_of_run(const Grad& o, Pointwise f, const Operands& in) {
  const DType type = pointwise_type(in);
  const bool cast = f == Pointwise::copy && is_floating(o.view.dtype) && !in[0].is_scalar;
  return cast && type == DType::i64 && in[0].view.dtype != DType::i64 ? DType::f64 : type;
}

template <class T>
void run_elements(const Queue& queue, const Grad& o, Pointwise f, const Operands& in,
                  const Layout<4>& layout) {
  const MapKernel<T> kernel = map_kernel_for<T>(f);
  ensure(kernel != nullptr, "pointwise function ", static_cast<int>(f),
         " has no whole-number version");
  layout.for_each_part([&](const Layout<4>& part) {
    const auto n = static_cast<std::uint32_t>(numel(part.shape));
    const Target out{address(o.view, part.starts[0]), o.view.dtype, o.add};
    run(queue, kernel, blocks_for(n), block_threads, 0, Walk<4>(part), n, out,
        sources_of<T>(in, part));
  });
}

/// The layout in units of vectors of `count` elements, if all views allow it.
bool in_vectors(const Grad& o, const Operands& in, Layout<4>& layout, std::int64_t count) {
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
bool run_vectors(const Queue& queue, const Grad& o, Pointwise f, const Operands& in,
                 Layout<4> layout) {
  const VectorKernel<T> kernel = vector_kernel_for<E, T>(f);
  constexpr std::int64_t count = 16 / static_cast<std::int64_t>(sizeof(E));
  if (!kernel || !in_vectors(o, in, layout, count)) return false;
  if (numel(layout.shape) >= std::int64_t{1} << 31) return false;
  const auto source = [&](int i) -> VectorSource<T> {
    if (i >= in.count) return {};
    if (in[i].is_scalar) return {nullptr, VectorSource<T>::number, scalar_as<T>(in[i].value)};
    const bool repeats = layout.strides[static_cast<std::size_t>(i) + 1].back() == 0;
    return {in[i].view.data, repeats ? VectorSource<T>::element : VectorSource<T>::vector, T(0)};
  };
  const auto vectors = static_cast<std::uint32_t>(numel(layout.shape));
  run(queue, kernel, blocks_for(vectors), block_threads, 0, Walk<4>(layout), vectors, o.view.data,
      VectorSources<T>{source(0), source(1), source(2)}, o.add);
  return true;
}

template <class T>
bool run_vectors_of(const Queue& queue, const Grad& o, Pointwise f, const Operands& in,
                    const Layout<4>& layout) {
  if constexpr (std::is_same_v<T, float>) {
    if (o.view.dtype == DType::bf16) return run_vectors<__nv_bfloat16, T>(queue, o, f, in, layout);
    if (o.view.dtype == DType::f16) return run_vectors<__half, T>(queue, o, f, in, layout);
  }
  return o.view.dtype == dtype_of<T> && run_vectors<T, T>(queue, o, f, in, layout);
}

void pointwise(Grad o, Pointwise f, const Operands& in) {
  if (o.view.numel() == 0) return;
  const Queue queue(o.view);
  const Layout<4> layout = pointwise_layout(o.view, in, o.view.shape).merged();
  with_compute_type(type_of_run(o, f, in), [&]<class T>(T) {
    if (!run_vectors_of<T>(queue, o, f, in, layout)) run_elements<T>(queue, o, f, in, layout);
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_pointwise() {
  pointwise_kernel.provide(DeviceKind::cuda, on_cuda::pointwise);
}

}  // namespace quipu
