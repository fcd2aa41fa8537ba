#pragma once
// What activations need of one number, written as in vector_math.h: without branches, so that loops
// over it become vector instructions.
#include "vector_math.h"

namespace quipu::detail::on_cpu::math {

/// e^x for x <= 0, within 1 unit in the last place, NaN for any NaN, and leaner than `exp`: the
/// exponent is put into the bits of the result. It is lifted first, so that the last product alone
/// may become subnormal.
template <class T>
QUIPU_INLINE T exp_below(T x) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T lowest = single ? T(-104) : T(-746);
  constexpr T lift = single ? T(64) : T(512), drop = single ? T(0x1p-64) : T(0x1p-512);
  constexpr T shift = Format<T>::whole_shift + lift;
  x = x < lowest ? lowest : x;
  const T lifted = x * T(0x1.71547652b82fep0) + shift;
  const T k = lifted - shift;
  const T r = (x - k * ln2_high<T>)-k * ln2_low<T>;
  const T e = T(1) + (r + r * r * exp_tail(r));
  // x - x is 0 or NaN: bits that are moved may turn a NaN into a number.
  return std::bit_cast<T>(bits_of(e) + (bits_of(lifted) << Format<T>::mantissa_bits)) * drop +
         (x - x);
}

/// sigmoid(x) and 1 - sigmoid(x), each to the last places where it is small, too.
template <class T>
struct Logistic {
  T value, rest;
};
template <class T>
QUIPU_INLINE Logistic<T> logistic(T x) {
  const T e = exp_below(-std::abs(x));
  const T large = T(1) / (T(1) + e);
  const T small = e * large;
  return {x < T(0) ? small : large, x < T(0) ? large : small};
}
/// The derivative of sigmoid.
template <class T>
QUIPU_INLINE T logistic_slope(T x) {
  const T e = exp_below(-std::abs(x));
  const T large = T(1) / (T(1) + e);
  return e * large * large;
}

template <class T>
QUIPU_INLINE T silu(T x) {
  const T e = exp_below(-std::abs(x));
  return (x < T(0) ? x * e : x) / (T(1) + e);
}
/// Its derivative.
template <class T>
QUIPU_INLINE T silu_slope(T x) {
  const Logistic<T> s = logistic(x);
  return s.value * (T(1) + x * s.rest);
}

/// e^(t^2 / 2) Phi(-t) (1 + 5 t / 4) as a polynomial in q = (t - pole) / (t + pole), t >= 0. It
/// hardly varies.
inline constexpr float normal_pole(float) {
  return 4;
}
inline constexpr double normal_pole(double) {
  return 6;
}
QUIPU_INLINE float normal_tail(float q) {
  return polynomial(q, 0x1.22078cp-1f, -0x1.40a26ep-4f, -0x1.bd7d6ep-7f, 0x1.b7b87p-5f,
                    -0x1.88ea9p-5f, 0x1.92327cp-6f, -0x1.a213d2p-8f, -0x1.19fd8ap-11f,
                    0x1.dbcedap-11f, -0x1.1d87e6p-14f, -0x1.8b0f3p-14f);
}
QUIPU_INLINE double normal_tail(double q) {
  return polynomial(
      q, 0x1.19eb69542c750p-1, -0x1.352d288bfd30dp-4, 0x1.7dda28541e6c1p-6, 0x1.ebd7218a75ce7p-7,
      -0x1.19a9b75bc2adfp-5, 0x1.2f2378afd638fp-5, -0x1.e2974d944e66cp-6, 0x1.3387e129901c4p-6,
      -0x1.3d2b7c9637a85p-7, 0x1.0117e2809457fp-8, -0x1.2892b62088274p-10, 0x1.32bf52ff9912fp-13,
      0x1.b751c6619a03bp-15, -0x1.1fd716377cb93p-15, 0x1.6a24305159f7ap-18, 0x1.43555865e5140p-19,
      -0x1.570dce4ffd897p-20, -0x1.1647e2663ca30p-26, 0x1.708a5fa84f8cbp-23, -0x1.9891d956b7f96p-26,
      -0x1.5d1695bcfa8edp-26, 0x1.e810e2a46af18p-29, 0x1.11ae3340a4ad3p-29);
}

/// e^(-t^2 / 2). What rounding takes from the square is put back, because it would be multiplied
/// by the square itself.
template <class T>
QUIPU_INLINE T bell(T t) {
  constexpr T splitter = sizeof(T) == 4 ? T(0x1p12) + T(1) : T(0x1p27) + T(1);
  const T scaled = splitter * t;
  const T high = scaled - (scaled - t), low = t - high;
  const T square = t * t;
  const T lost = ((high * high - square) + T(2) * high * low) + low * low;
  const T e = exp_below(T(-0.5) * square);
  return e - e * (T(0.5) * lost);
}

/// The normal distribution: what lies below x, and its density.
template <class T>
struct Normal {
  T cdf, density;
};
template <class T>
QUIPU_INLINE Normal<T> normal(T x) {
  constexpr T end = sizeof(T) == 4 ? T(14.5) : T(39);  // nothing is left beyond it
  const T t = std::abs(x) > end ? end : std::abs(x);
  const T e = bell(t);
  const T pole = normal_pole(T{});
  const T below = e * normal_tail((t - pole) / (t + pole)) / (T(1) + T(1.25) * t);
  return {x < T(0) ? below : T(1) - below, e * T(0x1.9884533d43651p-2)};
}

template <class T>
QUIPU_INLINE T gelu(T x) {
  return x * normal(x).cdf;
}
/// Its derivative.
template <class T>
QUIPU_INLINE T gelu_slope(T x) {
  const Normal<T> p = normal(x);
  return p.cdf + x * p.density;
}

}  // namespace quipu::detail::on_cpu::math
