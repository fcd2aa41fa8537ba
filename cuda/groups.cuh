#pragma once
// Neighbouring elements that one thread moves together, of a type known when the kernel runs. As
// many as fill 16 bytes in the type that it computes in make full use of the lines of memory; those
// of a narrower type then move in fewer bytes.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "element.cuh"
#include "quipu/core/view.h"

namespace quipu::on_cuda {

/// How many elements of type T fill 16 bytes.
template <class T>
inline constexpr int group_size = 16 / static_cast<int>(sizeof(T));

/// The widest type of which whole ones make up `bytes`.
template <int bytes>
using WordOf = std::conditional_t<
    bytes >= 16, uint4,
    std::conditional_t<bytes == 8, uint2,
                       std::conditional_t<bytes == 4, std::uint32_t, std::uint16_t>>>;

/// Group i of `count` elements of type E; wide ones take several accesses.
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

/// Calls f with an element of a type; all threads take one branch.
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

/// Whether data may be read in groups of so many elements.
inline bool on_group_border(const void* data, DType dtype, int count) {
  const auto bytes = std::min<std::uintptr_t>(
      16, static_cast<std::uintptr_t>(count) * static_cast<std::uintptr_t>(size_of(dtype)));
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

}  // namespace quipu::on_cuda
