#pragma once
// What pointwise_kernel and pointwise_sum_kernel share: operands as kernels read them, and tables
// from a function to the kernel that was compiled for it. The kernels of each compute type are
// compiled in files of their own.
#include <array>
#include <utility>

#include "quipu/core/error.h"
#include "quipu/cuda/tile/functions.cuh"
#include "quipu/cuda/tile/geometry.h"

namespace quipu::detail::on_cuda {

/// One operand: elements of a type known when the kernel runs, or one number. Kernels that move
/// chunks of several elements read a chunk at a time, or an element that all of a chunk share.
template <class T>
struct Source {
  enum Kind : int { number, element, chunk };
  __device__ __forceinline__ T at(std::int64_t i) const {
    return kind == number ? value : load_element<T>(data, dtype, i);
  }
  const void* data = nullptr;
  DType dtype = DType::f32;
  Kind kind = number;
  T value = T(0);
};
template <class T>
struct Sources {
  Source<T> a, b, c;
};

/// The output, written or added to.
struct Output {
  void* data;
  DType dtype;
  bool add;
};

template <class T>
using MapKernel = void (*)(Walk<4>, std::uint32_t n, Output, Sources<T>);
template <class T>
using VectorKernel = void (*)(Walk<4>, std::uint32_t vectors, void* out, Sources<T>, bool add);

/// The kernels of a function; null where it has none for T. E is the element type.
template <class T>
MapKernel<T> map_kernel_for(Pointwise f);
template <class E, class T>
VectorKernel<T> vector_kernel_for(Pointwise f);

/// The kernel of a function, Make::kernel<F>(); null where T has none.
template <class T, class Make, Pointwise F>
auto table_entry() -> decltype(Make::template kernel<Pointwise::copy>()) {
  if constexpr (std::is_floating_point_v<T> ? traits_of(F).for_real
                                            : traits_of(F).for_whole_numbers) {
    return Make::template kernel<F>();
  } else {
    return nullptr;
  }
}
template <class T, class Make, int... I>
auto function_table(std::integer_sequence<int, I...>) {
  using Kernel = decltype(Make::template kernel<Pointwise::copy>());
  return std::array<Kernel, sizeof...(I)>{table_entry<T, Make, static_cast<Pointwise>(I)>()...};
}
template <class T, class Make>
auto kernel_of(Pointwise f) {
  static const auto table =
      function_table<T, Make>(std::make_integer_sequence<int, pointwise_count>{});
  return table[static_cast<std::size_t>(f)];
}

// ---- on the host ----

template <class T>
Source<T> source_of(const Operands& in, int i, const Layout<4>& layout) {
  if (i >= in.count) return {};
  if (in[i].is_scalar) return {nullptr, DType::f32, Source<T>::number, scalar_as<T>(in[i].value)};
  const auto v = static_cast<std::size_t>(i) + 1;
  const Strides& strides = layout.strides[v];
  const bool repeats = strides.empty() || strides.back() == 0;
  const auto kind = repeats ? Source<T>::element : Source<T>::chunk;
  return {address(in[i].view, layout.starts[v]), in[i].view.dtype, kind, T(0)};
}
/// Chunks lie along the last dimension of the layout.
template <class T>
Sources<T> sources_of(const Operands& in, const Layout<4>& layout) {
  return {source_of<T>(in, 0, layout), source_of<T>(in, 1, layout), source_of<T>(in, 2, layout)};
}

}  // namespace quipu::detail::on_cuda
