#pragma once
// bf16 and f32 of one number, for loops that become vector instructions.
#include <bit>
#include <cstdint>

#include "quipu/core/dtype.h"
#include "vector_math.h"

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

}  // namespace quipu::detail::on_cpu
