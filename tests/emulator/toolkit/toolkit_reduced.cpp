// Compiled against the toolkit's headers, never the stand-ins. The types get other names, so that
// the linker does not take one's inline functions for the other's.
// NOLINTBEGIN(bugprone-reserved-identifier)
#define __nv_bfloat16 toolkit_bfloat16
#define __nv_bfloat162 toolkit_bfloat162
#define __half toolkit_half
#define __half2 toolkit_half2
// NOLINTEND(bugprone-reserved-identifier)
#include "toolkit_reduced.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

namespace quipu::testing::toolkit {
namespace {

template <class T>
T from_bits(std::uint16_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, 2);
  return value;
}

template <class T>
std::uint16_t to_bits(T value) {
  std::uint16_t bits;
  std::memcpy(&bits, static_cast<const void*>(&value), 2);
  return bits;
}

template <class T>
Reduced functions() {
  using Bits = std::uint16_t;
  Reduced result{};
  result.from_float = [](float x) { return to_bits(T(x)); };
  result.from_double = [](double x) { return to_bits(T(x)); };
  result.to_float = [](Bits a) { return static_cast<float>(from_bits<T>(a)); };
  result.add = [](Bits a, Bits b) { return to_bits<T>(__hadd(from_bits<T>(a), from_bits<T>(b))); };
  result.subtract = [](Bits a, Bits b) {
    return to_bits<T>(__hsub(from_bits<T>(a), from_bits<T>(b)));
  };
  result.multiply = [](Bits a, Bits b) {
    return to_bits<T>(__hmul(from_bits<T>(a), from_bits<T>(b)));
  };
  result.divide = [](Bits a, Bits b) {
    return to_bits<T>(__hdiv(from_bits<T>(a), from_bits<T>(b)));
  };
  return result;
}

}  // namespace

Reduced bf16() {
  return functions<toolkit_bfloat16>();
}

Reduced half() {
  return functions<toolkit_half>();
}

}  // namespace quipu::testing::toolkit
