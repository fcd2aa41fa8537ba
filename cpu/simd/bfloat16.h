#pragma once
// bf16 and f32 of one number, for loops that become vector instructions.
#include <bit>
#include <cstdint>

#include "quipu/core/dtype.h"
#include "vector_math.h"
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
#include <immintrin.h>
#endif

namespace quipu::detail::on_cpu {

QUIPU_INLINE float widened(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Rounded to nearest even; NaN stays NaN.
QUIPU_INLINE BFloat16 narrowed(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return {static_cast<std::uint16_t>((x != x ? bits | 0x400000u : rounded) >> 16)};
}

/// The same for a run. Where a processor has an instruction for it, half of the time; that takes
/// subnormal numbers for 0, so they go the long way.
QUIPU_INLINE void narrow_run(BFloat16* to, const float* from, std::int64_t n) {
  std::int64_t done = 0;
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
  constexpr int subnormal = 0x20;
  for (; done + 64 <= n; done += 64) {
    __m512 x[4];
    __mmask16 rare = 0;
    for (int v = 0; v < 4; ++v) {
      x[v] = _mm512_loadu_ps(from + done + 16 * v);
      rare |= _mm512_fpclass_ps_mask(x[v], subnormal);
    }
    if (rare != 0) [[unlikely]] {
      for (std::int64_t i = done; i < done + 64; ++i) to[i] = narrowed(from[i]);
      continue;
    }
    for (int v = 0; v < 4; ++v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + done + 16 * v),
                          reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x[v])));
    }
  }
#endif
  QUIPU_VECTORIZE
  for (std::int64_t i = done; i < n; ++i) to[i] = narrowed(from[i]);
}

}  // namespace quipu::detail::on_cpu
