#pragma once
// exp, log, tanh, sigmoid, sin and cos of one number, written without branches so that a plain
// loop over them becomes vector instructions, whatever the machine has. Results lie within 2 units
// in the last place everywhere (tests/cpu/vector_math_test.cpp holds the figures), subnormal ones
// too.
//
// Nothing here needs a fused multiply-add to be right: where a product must be exact, one factor
// has enough zeros at its end. Arguments are reduced in steps of that kind (Cody and Waite 1980).
// The polynomials are minimax fits on the reduced interval.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

/// Before a loop whose iterations are independent, though pointers may be equal (in-place
/// operators).
#if defined(__clang__)
#define QUIPU_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define QUIPU_VECTORIZE _Pragma("GCC ivdep")
#endif

/// A loop only becomes vector instructions when everything it calls is inlined.
#define QUIPU_INLINE [[gnu::always_inline]] inline

namespace quipu::detail::on_cpu::math {

/// How a floating type lies in memory.
template <class T>
struct Format;
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr float bias = 127;
  static constexpr float whole_shift = 0x1.8p23f;
  static constexpr Bits sqrt_half = 0x3f3504f3;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr double bias = 1023;
  static constexpr double whole_shift = 0x1.8p52;
  static constexpr Bits sqrt_half = 0x3fe6a09e667f3bcd;
};

template <class T>
QUIPU_INLINE constexpr typename Format<T>::Bits bits_of(T x) {
  return std::bit_cast<typename Format<T>::Bits>(x);
}

/// NaN wins.
template <class T>
QUIPU_INLINE T maximum(T a, T b) {
  const bool first = (a > b) | (a != a);
  return first ? a : b;
}
template <class T>
QUIPU_INLINE T minimum(T a, T b) {
  const bool first = (a < b) | (a != a);
  return first ? a : b;
}

/// c0 + c1 x + c2 x^2 + ...
template <class T>
QUIPU_INLINE T polynomial(T, T c) {
  return c;
}
template <class T, class... Rest>
QUIPU_INLINE T polynomial(T x, T c, Rest... rest) {
  return c + x * polynomial(x, rest...);
}

/// The nearest whole number; |x| is below 2^21 (f32) or 2^50 (f64). The sum leaves no room for a
/// fraction.
template <class T>
QUIPU_INLINE T nearest(T x) {
  return (x + Format<T>::whole_shift) - Format<T>::whole_shift;
}

/// The low bits of a whole number, by the same shift.
template <class T>
QUIPU_INLINE typename Format<T>::Bits whole_bits(T k) {
  return bits_of(k + Format<T>::whole_shift);
}

/// 2^k for whole k in the range of normal numbers.
template <class T>
QUIPU_INLINE T two_to(T k) {
  return std::bit_cast<T>(whole_bits(k + Format<T>::bias) << Format<T>::mantissa_bits);
}

/// e^x = 2^k (1 + tail).
template <class T>
struct SplitExp {
  T k, tail;
};

/// e^r = 1 + r + r^2 exp_tail(r) for |r| <= ln(2) / 2.
QUIPU_INLINE float exp_tail(float r) {
  return polynomial(r, 0x1p-1f, 0x1.55549p-3f, 0x1.55545ep-5f, 0x1.123b46p-7f, 0x1.6db40ep-10f);
}
QUIPU_INLINE double exp_tail(double r) {
  return polynomial(r, 0x1.000000000000bp-1, 0x1.5555555555561p-3, 0x1.555555555008dp-5,
                    0x1.111111110d660p-7, 0x1.6c16c1859705ap-10, 0x1.a01a01bad71e3p-13,
                    0x1.a01996b8edafdp-16, 0x1.71dddfe1c6389p-19, 0x1.28b02b39b2d57p-22,
                    0x1.af856887d4debp-26);
}

/// ln(2) in two parts; products of the first with exponents are exact.
template <class T>
inline constexpr T ln2_high = sizeof(T) == 4 ? T(0x1.62ep-1) : T(0x1.62e42fefa2p-1);
template <class T>
inline constexpr T ln2_low = sizeof(T) == 4 ? T(0x1.0bfbe8e7bcd5ep-15) : T(0x1.9ef35793c7673p-41);

template <class T>
QUIPU_INLINE SplitExp<T> split_exp(T x) {
  const T k = nearest(x * T(0x1.71547652b82fep0));
  const T a = x - k * ln2_high<T>;
  const T b = k * ln2_low<T>;
  const T r = a - b;
  const T rest = (a - r) - b;
  return {k, r + (r * r * exp_tail(r) + rest)};
}

template <class T>
QUIPU_INLINE T exp(T x) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T lowest = single ? T(-104) : T(-746), highest = single ? T(89) : T(710);
  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const SplitExp<T> e = split_exp(x);
  // Two factors, because 2^k itself may be subnormal or too large; only the last product rounds.
  const T half = nearest(e.k * T(0.5));
  return (T(1) + e.tail) * two_to(half) * two_to(e.k - half);
}

/// 1 / (1 + e^-x)
template <class T>
QUIPU_INLINE T sigmoid(T x) {
  const T e = exp(-std::abs(x));
  const T sum = T(1) + e;
  const T sum_error = (T(1) - sum) + e;
  const T y = (x < T(0) ? e : T(1)) / sum;
  const T inverse = x < T(0) ? T(1) - y : y;  // of the sum
  return y - y * inverse * sum_error;
}

/// tanh(x) = x + x z tanh_tail(z) with z = x^2, for |x| <= 0.55.
QUIPU_INLINE float tanh_tail(float z) {
  return polynomial(z, -0x1.55554cp-2f, 0x1.110d3cp-3f, -0x1.b92bd4p-5f, 0x1.59570ep-6f,
                    -0x1.9bbc08p-8f);
}
QUIPU_INLINE double tanh_tail(double z) {
  return polynomial(z, -0x1.55555555554a6p-2, 0x1.11111111031e3p-3, -0x1.ba1ba1adcdee9p-5,
                    0x1.664f45d29730cp-6, -0x1.226ddece7f349p-7, 0x1.d6c64b97a9189p-9,
                    -0x1.7cf567f12ea41p-10, 0x1.2fabdf9616db6p-11, -0x1.b943a84f1ea89p-13,
                    0x1.ac99b199220d6p-15);
}

template <class T>
QUIPU_INLINE T tanh(T x) {
  constexpr T flat = sizeof(T) == 4 ? T(10) : T(20);  // from here on it rounds to 1
  const T y = std::abs(x) > flat ? flat : std::abs(x);
  const T z = y * y;
  const T near = y + y * z * tanh_tail(z);
  const SplitExp<T> e = split_exp(T(-2) * y);
  const T decay = (T(1) + e.tail) * two_to(e.k);
  const T far = T(1) - T(2) * decay / (T(1) + decay);
  return std::copysign(y < T(0.55) ? near : far, x);
}

/// 2 atanh(s) = 2 s + s z log_tail(z) with z = s^2, for |s| <= 0.1716.
QUIPU_INLINE float log_tail(float z) {
  return polynomial(z, 0x1.55557ap-1f, 0x1.995ec6p-2f, 0x1.31e1f8p-2f);
}
QUIPU_INLINE double log_tail(double z) {
  return polynomial(z, 0x1.5555555555592p-1, 0x1.999999997fdc8p-2, 0x1.24924941f13dcp-2,
                    0x1.c71c5208af034p-3, 0x1.74663f253aad1p-3, 0x1.39a1b27800965p-3,
                    0x1.2f05c92fdc3f8p-3);
}

/// x = 2^k m with m in [sqrt(1/2), sqrt(2)).
template <class T>
struct SplitLog {
  T k, m;
};
/// For normal x. The exponent becomes a number by the bits of the shift, because few machines
/// convert 64-bit whole numbers.
template <class T>
QUIPU_INLINE SplitLog<T> split_log(T x) {
  using Bits = typename Format<T>::Bits;
  constexpr int mantissa_bits = Format<T>::mantissa_bits;
  constexpr Bits one = bits_of(T(1));
  const Bits bits = bits_of(x);
  const Bits exponent = (bits + (one - Format<T>::sqrt_half)) >> mantissa_bits;
  const T shifted = std::bit_cast<T>(bits_of(Format<T>::whole_shift) + exponent);
  return {shifted - (Format<T>::whole_shift + Format<T>::bias),
          std::bit_cast<T>(bits - ((exponent << mantissa_bits) - one))};
}

template <class T>
QUIPU_INLINE T log(T x) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  constexpr T grow = T(typename Format<T>::Bits{1} << Format<T>::mantissa_bits);
  const bool subnormal = x < std::numeric_limits<T>::min();
  const SplitLog<T> e = split_log(subnormal ? x * grow : x);
  const T k = e.k - (subnormal ? T(Format<T>::mantissa_bits) : T(0));

  const T f = e.m - T(1);
  const T s = f / (T(2) + f);
  const T z = s * s;
  // 2 s = f - s f, and f is exact.
  const T correction = s * (f - z * log_tail(z));
  T y = k * ln2_high<T> + (f - (correction - k * ln2_low<T>));
  y = x < infinity ? y : x;
  y = x == T(0) ? -infinity : y;
  return x < T(0) ? std::numeric_limits<T>::quiet_NaN() : y;
}

template <class T>
struct SinCos {
  T sin, cos;
};

/// Arguments up to this size are reduced exactly enough by `sincos`; beyond it, use std::sin and
/// std::cos.
inline constexpr double sincos_limit = 0x1p20;

/// sin and cos of x = k pi/2 + r, |r| <= pi/4, from those of r.
template <class T>
QUIPU_INLINE SinCos<T> turn(T x, T k, T sin_r, T cos_r) {
  using Bits = typename Format<T>::Bits;
  constexpr int sign_from_bit_1 = static_cast<int>(8 * sizeof(T)) - 2;
  const Bits quarter = whole_bits(k);
  const bool swap = (quarter & 1) != 0;
  const Bits sin_sign = (quarter & 2) << sign_from_bit_1;
  const Bits cos_sign = ((quarter + 1) & 2) << sign_from_bit_1;
  const T sin_x = std::bit_cast<T>(bits_of(swap ? cos_r : sin_r) ^ sin_sign);
  return {x == T(0) ? x : sin_x,  // keeps the sign of -0
          std::bit_cast<T>(bits_of(swap ? sin_r : cos_r) ^ cos_sign)};
}

inline constexpr double two_over_pi = 0x1.45f306dc9c883p-1;
// pi/2 in parts of 33 bits: their products with whole numbers up to 2^20 are exact.
inline constexpr double half_pi_1 = 0x1.921fb544p0, half_pi_2 = 0x1.0b4611a6p-34,
                        half_pi_3 = 0x1.3198a2ep-69, half_pi_4 = 0x1.b839a252049c1p-104;

/// Both at once, since they share nearly all the work. The argument is reduced in f64.
QUIPU_INLINE SinCos<float> sincos(float x) {
  const double k = nearest(static_cast<double>(x) * two_over_pi);
  const float r =
      static_cast<float>((static_cast<double>(x) - k * half_pi_1) - k * (half_pi_2 + half_pi_3));
  const float z = r * r;
  const float sin_r = r + r * z * polynomial(z, -0x1.555546p-3f, 0x1.11076p-7f, -0x1.994e84p-13f);
  const float cos_r =
      (1.0f - 0.5f * z) + z * z * polynomial(z, 0x1.55554ap-5f, -0x1.6c0c8cp-10f, 0x1.9a027ap-16f);
  return turn(x, static_cast<float>(k), sin_r, cos_r);
}

QUIPU_INLINE SinCos<double> sincos(double x) {
  const double k = nearest(x * two_over_pi);
  // x - k pi/2 = r + rest; the first difference is exact, the second one's error is kept.
  const double a = x - k * half_pi_1;
  const double b = k * half_pi_2;
  const double high = a - b;
  const double virtual_b = a - high;
  const double error = (a - (high + virtual_b)) + (virtual_b - b);
  const double low = (error - k * half_pi_3) - k * half_pi_4;
  const double r = high + low;
  const double rest = (high - r) + low;

  const double z = r * r;
  const double s =
      polynomial(z, -0x1.5555555555549p-3, 0x1.111111110f882p-7, -0x1.a01a019c126c0p-13,
                 0x1.71de357852382p-19, -0x1.ae5e66a577bc2p-26, 0x1.5d931cbf44e4fp-33);
  const double c =
      polynomial(z, 0x1.555555555554cp-5, -0x1.6c16c16c151b4p-10, 0x1.a01a019cb65e8p-16,
                 -0x1.27e4f80ce95bep-22, 0x1.1ee9edbcf795ap-29, -0x1.8faf7a832eef8p-37);
  return turn(x, k, r + (r * z * s + rest), (1.0 - 0.5 * z) + (z * z * c - r * rest));
}

/// True when `sincos` reaches all of x; NaN counts as within.
template <class T>
bool within_sincos_limit(const T* x, std::int64_t n) {
  int beyond = 0;
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) beyond |= std::abs(x[i]) > T(sincos_limit) ? 1 : 0;
  return beyond == 0;
}

/// The same for any argument, with a branch.
template <class T>
SinCos<T> sincos_anywhere(T x) {
  if (std::abs(x) > T(sincos_limit)) return {std::sin(x), std::cos(x)};
  return sincos(x);
}

}  // namespace quipu::detail::on_cpu::math
