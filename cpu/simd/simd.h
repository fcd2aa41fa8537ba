#pragma once
// The machine's vectors, by the compilers' vector types: arithmetic on them is one instruction.

namespace quipu::detail::on_cpu {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

template <class T>
struct Simd {
  static constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));
  typedef T Vector __attribute__((vector_size(vector_bytes), may_alias));
  /// A vector anywhere in an array of T.
  typedef T Loose __attribute__((vector_size(vector_bytes), aligned(alignof(T)), may_alias));
};

}  // namespace quipu::detail::on_cpu
