#pragma once
// Stands in for the toolkit's header of this name.
#include "../reduced.h"
#include "cuda_runtime.h"

struct __half_raw {
  unsigned short x;
};
struct __half {
  std::uint16_t __x;

  __half() = default;
  __half(float x) : __x(quipu::emulator::to_half_bits(x)) {}
  __half(double x) : __half(quipu::emulator::round_to_odd(x)) {}
  __half(int x) : __half(static_cast<double>(x)) {}
  __half(unsigned x) : __half(static_cast<double>(x)) {}
  __half(const __half_raw& raw) : __x(raw.x) {}
  operator float() const { return quipu::emulator::from_half_bits(__x); }
  operator __half_raw() const { return {__x}; }
};
struct alignas(4) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

inline __half __ushort_as_half(unsigned short bits) {
  return __half_raw{bits};
}
inline unsigned short __half_as_ushort(__half x) {
  return x.__x;
}
inline __half __hneg(__half x) {
  return __ushort_as_half(static_cast<unsigned short>(x.__x ^ 0x8000u));
}
inline __half __habs(__half x) {
  return __ushort_as_half(static_cast<unsigned short>(x.__x & 0x7fffu));
}
QUIPU_REDUCED(__half, __half2)

inline __half __float2half(float x) {
  return x;
}
inline __half __float2half_rn(float x) {
  return x;
}
inline __half __double2half(double x) {
  return x;
}
inline float __half2float(__half x) {
  return x;
}
inline __half2 __float2half2_rn(float x) {
  return {x, x};
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {x, y};
}
inline __half2 __float22half2_rn(float2 v) {
  return {v.x, v.y};
}
inline float2 __half22float2(__half2 v) {
  return {float(v.x), float(v.y)};
}
inline __half2 __halves2half2(__half x, __half y) {
  return {x, y};
}
inline __half2 __half2half2(__half x) {
  return {x, x};
}
inline __half __low2half(__half2 v) {
  return v.x;
}
inline __half __high2half(__half2 v) {
  return v.y;
}
