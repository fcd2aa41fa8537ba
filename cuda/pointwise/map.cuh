#pragma once
// o (=|+=) f(operands): the kernels, compiled for each function. A thread of the general one makes
// one element, of any strides and types; a thread of the other, which rarer functions do without,
// makes 16 bytes of the output from 16 bytes of each operand (or from one element that all of them
// share). Each operand is read once
// and the output written once: bound by memory, but for the dearest functions of f64.
#include "pointwise.cuh"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda {

template <class T, Pointwise F>
__global__ void __launch_bounds__(block_threads, 1)
    map_elements(Walk<4> walk, std::uint32_t n, Output out, Sources<T> in) {
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= n) return;
  std::int64_t at[4];
  walk.find(position, at);
  const T value = apply<F>(in.a.at(at[1]), in.b.at(at[2]), in.c.at(at[3]));
  put_element(out.data, out.dtype, at[0], value, out.add);
}

template <class E, class T>
__device__ __forceinline__ void load_vector(const Source<T>& source, std::int64_t i,
                                            T (&values)[Packed<T, E>::count]) {
  constexpr int count = Packed<T, E>::count;
  if (source.kind == Source<T>::chunk) {
    Packed<T, E>::load(source.data, element_dtype<E>, i * count, values);
  } else {
    const bool is_number = source.kind == Source<T>::number;
    const T value = is_number ? source.value : converted<T>(static_cast<const E*>(source.data)[i]);
    for (int j = 0; j < count; ++j) values[j] = value;
  }
}

template <class E, class T, Pointwise F>
__global__ void __launch_bounds__(block_threads, 1)
    map_vectors(Walk<4> walk, std::uint32_t vectors, void* out, Sources<T> in, bool add) {
  constexpr int count = Packed<T, E>::count;
  const std::uint32_t position = blockIdx.x * block_threads + threadIdx.x;
  if (position >= vectors) return;
  std::int64_t at[4];
  walk.find(position, at);
  T a[count], b[count], c[count];
  load_vector<E>(in.a, at[1], a);
  load_vector<E>(in.b, at[2], b);
  load_vector<E>(in.c, at[3], c);
  for (int j = 0; j < count; ++j) a[j] = apply<F, E>(a[j], b[j], c[j]);
  if (add) {
    T old[count];
    Packed<T, E>::load(out, element_dtype<E>, at[0] * count, old);
    for (int j = 0; j < count; ++j) a[j] = wrapping_sum(old[j], a[j]);
  }
  Packed<T, E>::put(out, element_dtype<E>, at[0] * count, a, false);
}

template <class T>
struct MakeMap {
  template <Pointwise F>
  static MapKernel<T> kernel() {
    return map_elements<T, F>;
  }
};
template <class E, class T>
struct MakeVector {
  template <Pointwise F>
  static VectorKernel<T> kernel() {
    if constexpr (traits_of(F).in_packs) {
      return map_vectors<E, T, F>;
    } else {
      return nullptr;
    }
  }
};

template <class T>
MapKernel<T> map_kernel_for(Pointwise f) {
  return kernel_of<T, MakeMap<T>>(f);
}
template <class E, class T>
VectorKernel<T> vector_kernel_for(Pointwise f) {
  return kernel_of<T, MakeVector<E, T>>(f);
}

}  // namespace quipu::detail::on_cuda
