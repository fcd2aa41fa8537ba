#pragma once
// Stands in for the toolkit's header of this name.
#include "../reduced.h"
#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __nv_bfloat16 {
  std::uint16_t __x;

  __nv_bfloat16() = default;
  __nv_bfloat16(float x) : __x(quipu::emulator::to_bf16_bits(x)) {}
  __nv_bfloat16(double x) : __nv_bfloat16(quipu::emulator::round_to_odd(x)) {}
  __nv_bfloat16(int x) : __nv_bfloat16(static_cast<double>(x)) {}
  __nv_bfloat16(unsigned x) : __nv_bfloat16(static_cast<double>(x)) {}
  __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
  operator float() const { return quipu::emulator::from_bf16_bits(__x); }
  operator __nv_bfloat16_raw() const { return {__x}; }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return __nv_bfloat16_raw{bits};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
  return x.__x;
}
inline __nv_bfloat16 __hneg(__nv_bfloat16 x) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(x.__x ^ 0x8000u));
}
inline __nv_bfloat16 __habs(__nv_bfloat16 x) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(x.__x & 0x7fffu));
}
QUIPU_REDUCED(__nv_bfloat16, __nv_bfloat162)

inline __nv_bfloat16 __float2bfloat16(float x) {
  return x;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return x;
}
inline __nv_bfloat16 __double2bfloat16(double x) {
  return x;
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return x;
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return {x, x};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {x, y};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return {v.x, v.y};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {float(v.x), float(v.y)};
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
  return {x, y};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
  return {x, x};
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) {
  return v.x;
}
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) {
  return v.y;
}
