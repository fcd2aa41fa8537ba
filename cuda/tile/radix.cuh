#pragma once
// Radix keys: numbers as unsigned integers of the same order, for radix select, which finds the
// k-th key from histograms of its digits, the highest first.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "quipu/cuda/launch.h"

namespace quipu::detail::on_cuda {

/// Digits of eight bits of a key of T.
template <class T>
inline constexpr int key_digits = static_cast<int>(sizeof(T));

/// The largest key of T.
template <class T>
inline constexpr std::uint64_t last_key = ~std::uint64_t{0} >> (64 - 8 * sizeof(T));

/// Keys rise with the numbers, or fall where the largest come first. Both zeros are one number; NaN
/// is larger than all others, and one number, too.
template <class T>
__device__ __forceinline__ std::uint64_t key_of(T x, bool largest_first) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits sign = Bits{1} << (8 * sizeof(T) - 1);
  Bits rising;
  if constexpr (std::is_integral_v<T>) {
    rising = static_cast<Bits>(x) ^ sign;
  } else {
    const Bits bits = std::bit_cast<Bits>(x + T(0));
    rising = x != x        ? static_cast<Bits>(~Bits{0})
             : bits & sign ? static_cast<Bits>(~bits)
                           : bits | sign;
  }
  return largest_first ? static_cast<Bits>(~rising) : rising;
}

}  // namespace quipu::detail::on_cuda
