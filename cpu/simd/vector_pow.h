#pragma once
// pow of one number, in the manner of vector_math.h: e^(b log a) with a logarithm that is exact
// enough for the exponent to multiply its error. For f32 that is plain f64; for f64 it is a sum of
// two f64, which only pays where a fused multiply-add gives the error of a product.
#include "vector_math.h"

namespace quipu::detail::on_cpu::math {

/// What std::pow says of zeros, infinities, NaN and negative bases, given p = e^(b log |a|).
template <class T>
QUIPU_INLINE T pow_special_cases(T a, T b, T p) {
  constexpr T infinity = std::numeric_limits<T>::infinity();
  // Adding this leaves no room for a fraction; from here on all numbers are whole, from its double
  // on even.
  constexpr T all_whole = T(typename Format<T>::Bits{1} << Format<T>::mantissa_bits);
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  const T x = std::abs(a), y = std::abs(b), half = T(0.5) * y;
  p = x == T(0) ? (b < T(0) ? infinity : T(0)) : p;
  p = x == infinity ? (b < T(0) ? T(0) : infinity) : p;
  p = x == T(1) ? T(1) : p;
  const bool whole = (y >= all_whole) | ((y + all_whole) - all_whole == y);
  const bool odd = whole & (y < T(2) * all_whole) & ((half + all_whole) - all_whole != half);
  const bool undefined = (!whole & (a < T(0)) & (x < infinity)) | (a != a) | (b != b);
  const bool one = (b == T(0)) | (a == T(1));
  p = odd ? std::copysign(p, a) : p;
  p = undefined ? nan : p;
  return one ? T(1) : p;
}

/// Within 0.51 units in the last place.
QUIPU_INLINE float pow(float a, float b) {
  const SplitLog<double> split =
      split_log(static_cast<double>(std::abs(a)));  // a subnormal f32 is a normal f64
  const double s = (split.m - 1.0) / (split.m + 1.0);
  const double log_m =
      s * polynomial(s * s, 0x1.0000000004a82p+1, 0x1.555554da6121cp-1, 0x1.999a9d2742bf6p-2,
                     0x1.24329f852faa1p-2, 0x1.e3b4101cd32c7p-3);
  constexpr double ln2 = 0x1.62e42fefa39efp-1;
  double t = static_cast<double>(b) * (split.k * ln2 + log_m);
  t = t < -200.0 ? -200.0 : t;
  t = t > 200.0 ? 200.0 : t;
  const double k = nearest(t * 0x1.71547652b82fep0);
  const double r = t - k * ln2;
  const double p =
      1.0 + r * polynomial(r, 0x1.ffffffffc5f29p-1, 0x1.00000043f457fp-1, 0x1.555555b885f6dp-3,
                           0x1.55547ed79bfd4p-5, 0x1.11106610d5673p-7, 0x1.6d9789bed5f35p-10,
                           0x1.a1cc93b0bc726p-13);
  return pow_special_cases(a, b, static_cast<float>(p * two_to(k)));
}

#if defined(__FMA__)

/// The unevaluated sum of a rounded result and its error.
struct Pair {
  double high, low;
};

QUIPU_INLINE Pair exact_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

QUIPU_INLINE Pair exact_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

/// log x to about 64 bits, for positive finite x.
QUIPU_INLINE Pair log_pair(double x) {
  const bool subnormal = x < std::numeric_limits<double>::min();
  const SplitLog<double> split = split_log(subnormal ? x * 0x1p52 : x);
  const double k = split.k - (subnormal ? 52.0 : 0.0);

  // s = (m - 1) / (m + 1); the divisor's rounding error and the quotient's remainder make up its
  // low part.
  const double f = split.m - 1.0;
  const double divisor = split.m + 1.0;
  const double divisor_low = split.m - (divisor - 1.0);
  const double inverse = 1.0 / divisor;
  const double s = f * inverse;
  const Pair back = exact_product(s, divisor);
  const double s_low = (((f - back.high) - back.low) - s * divisor_low) * inverse;

  // log m = 2 s + s w with w = 2/3 z + z^2 (...) and z = s^2.
  Pair z = exact_product(s, s);
  z.low += 2.0 * s * s_low;
  Pair w = exact_product(z.high, 0x1.5555555555555p-1);
  const double tail = polynomial(z.high, 0x1.9999999999998p-2, 0x1.2492492492b73p-2,
                                 0x1.c71c71c5fa8abp-3, 0x1.745d17ff9ede3p-3, 0x1.3b136ea1bd062p-3,
                                 0x1.111f1b33f83fbp-3, 0x1.de6e5b7c13378p-4, 0x1.e950d36351617p-4);
  w = exact_sum(w.high, w.low + (z.high * 0x1.5555555555555p-55 + z.low * 0x1.5555555555555p-1 +
                                 z.high * z.high * tail));
  const Pair sw = exact_product(s, w.high);

  const Pair first = exact_sum(k * ln2_high<double>, 2.0 * s);
  const Pair second = exact_sum(first.high, sw.high);
  const double low =
      (first.low + second.low) + ((sw.low + s * w.low + s_low * w.high) + 2.0 * s_low);
  return exact_sum(second.high, low + k * ln2_low<double>);
}

/// Within 1.2 units in the last place.
QUIPU_INLINE double pow(double a, double b) {
  const Pair log_a = log_pair(std::abs(a));
  Pair t = exact_product(b, log_a.high);
  t.low += b * log_a.low;
  t.low = std::abs(t.high) < 800.0 ? t.low : 0.0;
  double high = t.high < -746.0 ? -746.0 : t.high;
  high = high > 710.0 ? 710.0 : high;
  const SplitExp<double> e = split_exp(high);
  const double half = nearest(e.k * 0.5);
  const double p = (1.0 + (e.tail + (t.low + t.low * e.tail))) * two_to(half) * two_to(e.k - half);
  return pow_special_cases(a, b, p);
}

#else

QUIPU_INLINE double pow(double a, double b) {
  return std::pow(a, b);
}

#endif

}  // namespace quipu::detail::on_cpu::math
