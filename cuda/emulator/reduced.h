#pragma once
// What the stand-ins for cuda_bf16.h and cuda_fp16.h share: conversions with one rounding, and
// arithmetic as the device does it, in f32 with one rounding at the end.
#include <bit>
#include <cmath>
#include <cstdint>

#include "include/cuda_runtime.h"

namespace quipu::emulator {

/// A float that rounds to any shorter type as the double itself would: where the double lies
/// between two floats it takes the one with an odd last bit.
inline float round_to_odd(double x) {
  const float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || !std::isfinite(x) || std::isinf(nearest)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1u) return nearest;
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(x);
  if (away && (bits & 0x7fffffffu) == 0) return nearest;
  bits = away ? bits - 1 : bits + 1;
  return std::bit_cast<float>(bits);
}

inline std::uint16_t to_bf16_bits(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float from_bf16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

inline std::uint16_t to_half_bits(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  std::uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fff;
  if (size >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (size < 0x38800000u) {  // a multiple of 2^-24, which is what ends 0.5f
    size = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
  } else {
    size = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | size);
}
inline float from_half_bits(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t size = bits & 0x7fffu;
  if (size >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (size & 0x3ffu) << 13);
  const float magnitude = size < 0x400u ? static_cast<float>(size) * 0x1p-24f
                                        : std::bit_cast<float>((size << 13) + 0x38000000u);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

}  // namespace quipu::emulator

// Everything that is the same for __nv_bfloat16 and __half, once their conversions are there.
#define QUIPU_REDUCED_OPERATOR(Scalar, Pair, op, name)          \
  inline Scalar operator op(const Scalar& a, const Scalar& b) { \
    return float(a) op float(b);                                \
  }                                                             \
  inline Pair operator op(const Pair& a, const Pair& b) {       \
    return {a.x op b.x, a.y op b.y};                            \
  }                                                             \
  inline Scalar& operator op##=(Scalar& a, const Scalar& b) {   \
    return a = a op b;                                          \
  }                                                             \
  inline Pair& operator op##=(Pair& a, const Pair& b) {         \
    return a = a op b;                                          \
  }                                                             \
  inline Scalar name(Scalar a, Scalar b) {                      \
    return a op b;                                              \
  }                                                             \
  inline Pair name##2(Pair a, Pair b) {                         \
    return a op b;                                              \
  }
#define QUIPU_REDUCED_COMPARE(Scalar, op, name)               \
  inline bool operator op(const Scalar& a, const Scalar& b) { \
    return float(a) op float(b);                              \
  }                                                           \
  inline bool name(Scalar a, Scalar b) {                      \
    return float(a) op float(b);                              \
  }
#define QUIPU_REDUCED_FUNCTION(Scalar, name, expression) \
  inline Scalar name(Scalar value) {                     \
    const float x = float(value);                        \
    return static_cast<float>(expression);               \
  }
#define QUIPU_REDUCED_ARITHMETIC(Scalar, Pair)                       \
  QUIPU_REDUCED_OPERATOR(Scalar, Pair, +, __hadd)                    \
  QUIPU_REDUCED_OPERATOR(Scalar, Pair, -, __hsub)                    \
  QUIPU_REDUCED_OPERATOR(Scalar, Pair, *, __hmul)                    \
  QUIPU_REDUCED_OPERATOR(Scalar, Pair, /, __hdiv)                    \
  QUIPU_REDUCED_COMPARE(Scalar, ==, __heq)                           \
  QUIPU_REDUCED_COMPARE(Scalar, !=, __hne)                           \
  QUIPU_REDUCED_COMPARE(Scalar, <, __hlt)                            \
  QUIPU_REDUCED_COMPARE(Scalar, <=, __hle)                           \
  QUIPU_REDUCED_COMPARE(Scalar, >, __hgt)                            \
  QUIPU_REDUCED_COMPARE(Scalar, >=, __hge)                           \
  inline Scalar operator-(const Scalar& a) {                         \
    return __hneg(a);                                                \
  }                                                                  \
  inline Pair __h2div(Pair a, Pair b) {                              \
    return a / b;                                                    \
  }                                                                  \
  inline Pair __hneg2(Pair a) {                                      \
    return {__hneg(a.x), __hneg(a.y)};                               \
  }                                                                  \
  inline Scalar __hfma(Scalar a, Scalar b, Scalar c) {               \
    return static_cast<double>(float(a)) * float(b) + float(c);      \
  }                                                                  \
  inline Pair __hfma2(Pair a, Pair b, Pair c) {                      \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};           \
  }                                                                  \
  inline bool __hisnan(Scalar a) {                                   \
    return std::isnan(float(a));                                     \
  }                                                                  \
  inline int __hisinf(Scalar a) {                                    \
    return std::isinf(float(a)) ? (float(a) > 0 ? 1 : -1) : 0;       \
  }                                                                  \
  inline Scalar __hmax(Scalar a, Scalar b) {                         \
    return std::fmax(float(a), float(b));                            \
  }                                                                  \
  inline Scalar __hmin(Scalar a, Scalar b) {                         \
    return std::fmin(float(a), float(b));                            \
  }                                                                  \
  inline Pair __hmax2(Pair a, Pair b) {                              \
    return {__hmax(a.x, b.x), __hmax(a.y, b.y)};                     \
  }                                                                  \
  inline Pair __hmin2(Pair a, Pair b) {                              \
    return {__hmin(a.x, b.x), __hmin(a.y, b.y)};                     \
  }                                                                  \
  inline float __low2float(Pair a) {                                 \
    return float(a.x);                                               \
  }                                                                  \
  inline float __high2float(Pair a) {                                \
    return float(a.y);                                               \
  }                                                                  \
  QUIPU_REDUCED_FUNCTION(Scalar, hexp, std::exp(x))                  \
  QUIPU_REDUCED_FUNCTION(Scalar, hexp2, std::exp2(x))                \
  QUIPU_REDUCED_FUNCTION(Scalar, hlog, std::log(x))                  \
  QUIPU_REDUCED_FUNCTION(Scalar, hsqrt, std::sqrt(x))                \
  QUIPU_REDUCED_FUNCTION(Scalar, hrsqrt, 1.0 / std::sqrt(double(x))) \
  QUIPU_REDUCED_FUNCTION(Scalar, hrcp, 1.0f / x)

// A type of 16 bits, its pair, and all that the toolkit's headers give for them. `name` is how the
// type is called in the names of functions, `bits` in the conversions above.
#define QUIPU_REDUCED_TYPE(Scalar, name, bits)                               \
  struct Scalar##_raw {                                                      \
    unsigned short x;                                                        \
  };                                                                         \
  struct Scalar {                                                            \
    std::uint16_t __x;                                                       \
                                                                             \
    Scalar() = default;                                                      \
    Scalar(float x) : __x(quipu::emulator::to_##bits(x)) {}                  \
    Scalar(double x) : Scalar(quipu::emulator::round_to_odd(x)) {}           \
    Scalar(int x) : Scalar(static_cast<double>(x)) {}                        \
    Scalar(unsigned x) : Scalar(static_cast<double>(x)) {}                   \
    Scalar(const Scalar##_raw& raw) : __x(raw.x) {}                          \
    operator float() const { return quipu::emulator::from_##bits(__x); }     \
    operator Scalar##_raw() const { return {__x}; }                          \
  };                                                                         \
  struct alignas(4) Scalar##2 {                                              \
    Scalar x, y;                                                             \
  };                                                                         \
  inline Scalar __ushort_as_##name(unsigned short x) {                       \
    return Scalar##_raw{x};                                                  \
  }                                                                          \
  inline unsigned short __##name##_as_ushort(Scalar x) {                     \
    return x.__x;                                                            \
  }                                                                          \
  inline Scalar __hneg(Scalar x) {                                           \
    return __ushort_as_##name(static_cast<unsigned short>(x.__x ^ 0x8000u)); \
  }                                                                          \
  inline Scalar __habs(Scalar x) {                                           \
    return __ushort_as_##name(static_cast<unsigned short>(x.__x & 0x7fffu)); \
  }                                                                          \
  QUIPU_REDUCED_ARITHMETIC(Scalar, Scalar##2)                                \
  inline Scalar __float2##name(float x) {                                    \
    return x;                                                                \
  }                                                                          \
  inline Scalar __float2##name##_rn(float x) {                               \
    return x;                                                                \
  }                                                                          \
  inline Scalar __double2##name(double x) {                                  \
    return x;                                                                \
  }                                                                          \
  inline float __##name##2float(Scalar x) {                                  \
    return x;                                                                \
  }                                                                          \
  inline Scalar##2 __float2##name##2_rn(float x) {                           \
    return {x, x};                                                           \
  }                                                                          \
  inline Scalar##2 __floats2##name##2_rn(float x, float y) {                 \
    return {x, y};                                                           \
  }                                                                          \
  inline Scalar##2 __float22##name##2_rn(float2 v) {                         \
    return {v.x, v.y};                                                       \
  }                                                                          \
  inline float2 __##name##22float2(Scalar##2 v) {                            \
    return {float(v.x), float(v.y)};                                         \
  }                                                                          \
  inline Scalar##2 __halves2##name##2(Scalar x, Scalar y) {                  \
    return {x, y};                                                           \
  }                                                                          \
  inline Scalar##2 __##name##2##name##2(Scalar x) {                          \
    return {x, x};                                                           \
  }                                                                          \
  inline Scalar __low2##name(Scalar##2 v) {                                  \
    return v.x;                                                              \
  }                                                                          \
  inline Scalar __high2##name(Scalar##2 v) {                                 \
    return v.y;                                                              \
  }
