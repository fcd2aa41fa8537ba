#pragma once
// The device's mathematics beyond <cmath>. Fast functions are computed accurately: a kernel must
// not depend on their error, and comparisons with hardware need a tolerance. Approximate
// instructions (ptx.h) are off by as much as their documentation allows.
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "language.h"

using std::abs;
using std::isfinite;
using std::isinf;
using std::isnan;

#define QUIPU_MIN_MAX(A, B, Result)                                    \
  __forceinline__ constexpr Result min(A a, B b) {                     \
    const auto x = static_cast<Result>(a), y = static_cast<Result>(b); \
    return x < y ? x : y;                                              \
  }                                                                    \
  __forceinline__ constexpr Result max(A a, B b) {                     \
    const auto x = static_cast<Result>(a), y = static_cast<Result>(b); \
    return x < y ? y : x;                                              \
  }
#define QUIPU_MIN_MAX_INTEGER(Signed, Unsigned) \
  QUIPU_MIN_MAX(Signed, Signed, Signed)         \
  QUIPU_MIN_MAX(Unsigned, Unsigned, Unsigned)   \
  QUIPU_MIN_MAX(Signed, Unsigned, Unsigned)     \
  QUIPU_MIN_MAX(Unsigned, Signed, Unsigned)
QUIPU_MIN_MAX_INTEGER(int, unsigned)
QUIPU_MIN_MAX_INTEGER(long, unsigned long)
QUIPU_MIN_MAX_INTEGER(long long, unsigned long long)
#undef QUIPU_MIN_MAX_INTEGER
#undef QUIPU_MIN_MAX
// A number beats NaN, as on the device.
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}
inline double min(double a, double b) {
  return std::fmin(a, b);
}
inline double max(double a, double b) {
  return std::fmax(a, b);
}

namespace quipu::emulator {
/// `result`, an instruction's of x, moved by `units` in the last place, one way or the other.
inline float off_by(unsigned units, float x, float result) {
  if (!std::isnormal(result)) return result;
  const bool up = std::popcount(std::bit_cast<unsigned>(x)) % 2 != 0;
  return std::bit_cast<float>(std::bit_cast<unsigned>(result) + (up ? units : 0u - units));
}
}  // namespace quipu::emulator

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline double rsqrt(double x) {
  return 1.0 / std::sqrt(x);
}
inline float rsqrt(float x) {
  return rsqrtf(x);
}
inline float sinpif(float x) {
  return static_cast<float>(std::sin(M_PI * std::remainder(double(x), 2.0)));
}
inline float cospif(float x) {
  return static_cast<float>(std::cos(M_PI * std::remainder(double(x), 2.0)));
}
inline double sinpi(double x) {
  return std::sin(M_PI * std::remainder(x, 2.0));
}
inline double cospi(double x) {
  return std::cos(M_PI * std::remainder(x, 2.0));
}
inline void sincospif(float x, float* s, float* c) {
  *s = sinpif(x), *c = cospif(x);
}
inline void sincospi(double x, double* s, double* c) {
  *s = sinpi(x), *c = cospi(x);
}
inline float normcdff(float x) {
  return 0.5f * std::erfc(-x * 0.70710678118654752f);
}
inline double normcdf(double x) {
  return 0.5 * std::erfc(-x * 0.70710678118654752);
}

inline float __expf(float x) {
  return std::exp(x);
}
inline float __exp10f(float x) {
  return std::pow(10.0f, x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __log2f(float x) {
  return std::log2(x);
}
inline float __log10f(float x) {
  return std::log10(x);
}
inline float __sinf(float x) {
  return std::sin(x);
}
inline float __cosf(float x) {
  return std::cos(x);
}
inline float __tanf(float x) {
  return std::tan(x);
}
inline void __sincosf(float x, float* s, float* c) {
  *s = std::sin(x), *c = std::cos(x);
}
inline float __powf(float x, float y) {
  return std::pow(x, y);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __saturatef(float x) {
  return x > 0 ? (x < 1 ? x : 1) : 0;
}

inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline double __fma_rn(double a, double b, double c) {
  return std::fma(a, b, c);
}
// Kept from being contracted into a fused multiply-add, as on the device.
#define QUIPU_ROUNDED(name, Type, op)                          \
  __attribute__((noinline)) inline Type name(Type a, Type b) { \
    return a op b;                                             \
  }
QUIPU_ROUNDED(__fadd_rn, float, +)
QUIPU_ROUNDED(__fsub_rn, float, -)
QUIPU_ROUNDED(__fmul_rn, float, *)
QUIPU_ROUNDED(__fdiv_rn, float, /)
QUIPU_ROUNDED(__dadd_rn, double, +)
QUIPU_ROUNDED(__dsub_rn, double, -)
QUIPU_ROUNDED(__dmul_rn, double, *)
QUIPU_ROUNDED(__ddiv_rn, double, /)
#undef QUIPU_ROUNDED
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float __frsqrt_rn(float x) {
  return static_cast<float>(1.0 / std::sqrt(double(x)));
}

inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}

/// Out of range saturates and NaN gives 0, as on the device.
template <class Integer, class Float>
Integer quipu_saturating(Float rounded, Integer least, Integer most) {
  if (std::isnan(rounded)) return 0;
  if (rounded <= Float(least)) return least;
  if (rounded >= Float(most)) return most;
  return static_cast<Integer>(rounded);
}
inline int __float2int_rn(float x) {
  return quipu_saturating(std::nearbyint(x), INT_MIN, INT_MAX);
}
inline int __float2int_rz(float x) {
  return quipu_saturating(std::trunc(x), INT_MIN, INT_MAX);
}
inline int __float2int_rd(float x) {
  return quipu_saturating(std::floor(x), INT_MIN, INT_MAX);
}
inline int __float2int_ru(float x) {
  return quipu_saturating(std::ceil(x), INT_MIN, INT_MAX);
}
inline int __double2int_rn(double x) {
  return quipu_saturating(std::nearbyint(x), INT_MIN, INT_MAX);
}
inline long long __float2ll_rn(float x) {
  return quipu_saturating(std::nearbyint(x), LLONG_MIN, LLONG_MAX);
}
inline long long __double2ll_rn(double x) {
  return quipu_saturating(std::nearbyint(x), LLONG_MIN, LLONG_MAX);
}
inline float __int2float_rn(int x) {
  return static_cast<float>(x);
}
inline float __uint2float_rn(unsigned x) {
  return static_cast<float>(x);
}
inline float __ll2float_rn(long long x) {
  return static_cast<float>(x);
}
inline float __double2float_rn(double x) {
  return static_cast<float>(x);
}

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __mulhi(int a, int b) {
  return static_cast<int>(std::int64_t{a} * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(Wide{a} * b >> 64);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(both >> (8 * (pick & 7u)) & 255u);
    if (pick & 8u) byte = byte & 128u ? 255u : 0u;  // the sign of the byte
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  return static_cast<unsigned>(both << (shift & 31u) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31u));
}
