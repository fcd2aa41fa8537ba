#pragma once
// Neighbouring elements that one thread moves together, of a type known when the kernel runs. A
// group fills 16 bytes in the compute type; elements of a narrower type move in fewer bytes.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "element.cuh"
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cuda {

/// How many elements of type T fill 16 bytes.
template <class T>
inline constexpr int group_size = 16 / static_cast<int>(sizeof(T));

/// The widest access that divides `bytes`.
template <int bytes>
using WordOf = std::conditional_t<
    bytes >= 16, uint4,
    std::conditional_t<bytes == 8, uint2,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint16_t>>>;

/// Loads and stores of group i of `count` elements of type E, in as few accesses as possible.
template <class E, class T, int count>
struct Group {
  static constexpr int bytes = count * static_cast<int>(sizeof(E));
  using Word = WordOf<bytes>;
  static constexpr int words = bytes / static_cast<int>(sizeof(Word)), in_word = count / words;
  struct Elements {
    E elements[in_word];
  };
  __device__ __forceinline__ static void load(const void* data, std::int64_t i,
                                              T (&values)[count]) {
    for (int w = 0; w < words; ++w) {
      const auto part = std::bit_cast<Elements>(static_cast<const Word*>(data)[i * words + w]);
      for (int j = 0; j < in_word; ++j) values[w * in_word + j] = converted<T>(part.elements[j]);
    }
  }
  __device__ __forceinline__ static void store(void* data, std::int64_t i,
                                               const T (&values)[count]) {
    for (int w = 0; w < words; ++w) {
      Elements part;
      for (int j = 0; j < in_word; ++j) part.elements[j] = converted<E>(values[w * in_word + j]);
      static_cast<Word*>(data)[i * words + w] = std::bit_cast<Word>(part);
    }
  }
};

/// Calls f with a zero of an element type. The branch is uniform.
template <class F>
__device__ __forceinline__ void with_element(DType dtype, F f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(__nv_bfloat16{});
    case DType::f16: return f(__half{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::u8: return f(std::uint8_t{});
    default: return f(Truth{});
  }
}

/// Group i of n elements; those behind the end are 0.
template <class T, int count>
__device__ __forceinline__ void load_group(const void* data, DType dtype, std::int64_t i,
                                           std::int64_t n, T (&values)[count]) {
  if ((i + 1) * count <= n) {
    with_element(dtype, [&]<class E>(E) { Group<E, T, count>::load(data, i, values); });
    return;
  }
  for (int j = 0; j < count; ++j) {
    values[j] = i * count + j < n ? load_element<T>(data, dtype, i * count + j) : T(0);
  }
}

template <class T, int count>
__device__ __forceinline__ void store_group(void* data, DType dtype, std::int64_t i, std::int64_t n,
                                            const T (&values)[count]) {
  if ((i + 1) * count <= n) {
    with_element(dtype, [&]<class E>(E) { Group<E, T, count>::store(data, i, values); });
    return;
  }
  for (int j = 0; j < count; ++j) {
    if (i * count + j < n) store_element(data, dtype, i * count + j, values[j]);
  }
}

/// Whether data is aligned for groups of `count` elements.
inline bool is_group_aligned(const void* data, DType dtype, int count) {
  const auto bytes = std::min<std::uintptr_t>(
      16, static_cast<std::uintptr_t>(count) * static_cast<std::uintptr_t>(size_of(dtype)));
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

}  // namespace quipu::detail::on_cuda
