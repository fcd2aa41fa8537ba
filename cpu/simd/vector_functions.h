#pragma once
// The rarer functions of one or two numbers, written as in vector_math.h: without branches, so that
// loops over them become vector instructions. Within 3 units in the last place of the exact result
// (tests/cpu/vector_functions_test.cpp), beyond which arguments overflow too.
#include "vector_acts.h"

namespace quipu::detail::on_cpu::math {

/// e^x - 1 without the loss of digits near 0.
template <class T>
QUIPU_INLINE T expm1(T x) {
  constexpr bool single = sizeof(T) == 4;
  constexpr T lowest = single ? T(-30) : T(-60), highest = single ? T(89) : T(710);
  T bounded = x < lowest ? lowest : x;
  bounded = bounded > highest ? highest : bounded;
  const SplitExp<T> e = split_exp(bounded);
  const T half = two_to(e.k - T(1));  // 2^k itself may be too large
  const T y = T(2) * (half * e.tail + (half - T(0.5)));
  return x == T(0) ? x : y;  // keeps the sign of -0
}

/// log(1 + x) without the loss of digits near 0.
template <class T>
QUIPU_INLINE T log1p(T x) {
  const T u = T(1) + x;
  const T lost = x > T(1) ? T(1) - (u - x) : x - (u - T(1));  // by the rounding of u
  const T y = log(u) + lost / u;
  const bool special = (u == T(0)) | (u == std::numeric_limits<T>::infinity());
  return x == T(0) ? x : special ? log(u) : y;
}

/// erf(x) = x + x erf_tail(x^2) for |x| <= 1.
QUIPU_INLINE float erf_tail(float z) {
  return polynomial(z, 0x1.06eba8p-3f, -0x1.81273ep-2f, 0x1.ce2d1p-4f, -0x1.b7fabap-6f,
                    0x1.541270p-8f, -0x1.a45088p-11f, 0x1.4a569p-14f);
}
QUIPU_INLINE double erf_tail(double z) {
  return polynomial(z, 0x1.06eba8214db69p-3, -0x1.812746b0379e7p-2, 0x1.ce2f21a042bdep-4,
                    -0x1.b82ce312889bap-6, 0x1.565bcd0e6502dp-8, -0x1.c02db3feeb579p-11,
                    0x1.f9a326c233146p-14, -0x1.f4d2561aeafd4p-17, 0x1.b9e6509b9867dp-20,
                    -0x1.5f6d925a0bc7ap-23, 0x1.fc4356498c2d9p-27, -0x1.4e607b41a6416p-30,
                    0x1.7f072188e194dp-34, -0x1.29b9f1b3df556p-38);
}
template <class T>
QUIPU_INLINE T erf(T x) {
  const T t = std::abs(x);
  const T bounded = t > T(1) ? T(1) : t;
  const T near = bounded + bounded * erf_tail(bounded * bounded);
  const T far = T(1) - T(2) * normal(T(-0x1.6a09e667f3bcdp0) * t).cdf;
  return std::copysign(t <= T(1) ? near : far, x);
}

/// asin(x) = x + x z asin_tail(z) with z = x^2, for |x| <= 1/2.
QUIPU_INLINE float asin_tail(float z) {
  return polynomial(z, 0x1.555554p-3f, 0x1.33343p-4f, 0x1.6d5bbap-5f, 0x1.fd8da2p-6f,
                    0x1.18f91ep-6f, 0x1.13fed4p-5f);
}
QUIPU_INLINE double asin_tail(double z) {
  return polynomial(z, 0x1.5555555555556p-3, 0x1.3333333332ecap-4, 0x1.6db6db6e31f13p-5,
                    0x1.f1c71c1db0623p-6, 0x1.6e8bb1c8209a2p-6, 0x1.1c4d35cf95421p-6,
                    0x1.c9cf07674736ap-7, 0x1.782651caa6547p-7, 0x1.52420b04b37bep-7,
                    0x1.65a9c4dfcf8b2p-8, 0x1.1d189408314eep-6, -0x1.e6aaa8a0a04ccp-7,
                    0x1.d72b2bc8155f8p-6);
}
template <class T>
inline constexpr T pi_high = T(0x1.921fb54442d18p1);
/// What rounding left off pi.
template <class T>
inline constexpr T pi_low = sizeof(T) == 4 ? T(-0x1.777a5cf72cecep-24) : T(0x1.1a62633145c07p-53);

/// asin of |x|, up to 1/2 by itself and beyond as pi/2 - 2 asin(sqrt((1 - |x|) / 2)).
template <class T>
struct SplitAsin {
  bool near;
  T part;  // asin(|x|), or asin of that root
};
template <class T>
QUIPU_INLINE SplitAsin<T> split_asin(T x) {
  const T t = std::abs(x);
  const bool near = t <= T(0.5);
  const T z = near ? t * t : T(0.5) * (T(1) - t);
  const T s = near ? t : std::sqrt(z);
  return {near, s + s * z * asin_tail(z)};
}
template <class T>
QUIPU_INLINE T asin(T x) {
  const SplitAsin<T> a = split_asin(x);
  const T far = T(0.5) * pi_high<T> - (T(2) * a.part - T(0.5) * pi_low<T>);
  return std::copysign(a.near ? a.part : far, x);
}
template <class T>
QUIPU_INLINE T acos(T x) {
  const SplitAsin<T> a = split_asin(x);
  const T signed_part = std::copysign(a.part, x);
  const T near = T(0.5) * pi_high<T> - (signed_part - T(0.5) * pi_low<T>);
  const T far = x < T(0) ? pi_high<T> - (T(2) * a.part - pi_low<T>) : T(2) * a.part;
  return a.near ? near : far;
}

/// atan(t) = t + t z atan_tail(z) with z = t^2, for |t| <= tan(pi/8).
QUIPU_INLINE float atan_tail(float z) {
  return polynomial(z, -0x1.555554p-2f, 0x1.99973p-3f, -0x1.242036p-3f, 0x1.b8103p-4f,
                    -0x1.08455ap-4f);
}
QUIPU_INLINE double atan_tail(double z) {
  return polynomial(z, -0x1.5555555555555p-2, 0x1.999999999934cp-3, -0x1.24924924361ffp-3,
                    0x1.c71c71853d68fp-4, -0x1.745d0b28a4492p-4, 0x1.3b126305fbb8fp-4,
                    -0x1.10fa77ad0bdd9p-4, 0x1.dfe6492e92bd4p-5, -0x1.a0999ac075bddp-5,
                    0x1.4162bb717b21fp-5, -0x1.3a31a62e2b60ep-6);
}
/// atan(y / x) for 0 <= y <= x, as `high` + `low`.
template <class T>
QUIPU_INLINE T atan_of(T y, T x, T high, T low, T sign) {
  const bool far = y > T(0.414213562373095) * x;
  const T t = far ? (y - x) / (y + x) : y / x;
  const T z = t * t;
  const T part = t + t * z * atan_tail(z);
  const T quarter_high = far ? T(0.25) * pi_high<T> : T(0);
  const T quarter_low = far ? T(0.25) * pi_low<T> : T(0);
  // high + sign * quarter is a multiple of pi / 4, and exact but for the last place of one.
  return (high + sign * quarter_high) + (sign * part + (low + sign * quarter_low));
}
template <class T>
QUIPU_INLINE T atan(T x) {
  const T t = std::abs(x);
  const bool steep = t > T(1);
  const T high = steep ? T(0.5) * pi_high<T> : T(0), low = steep ? T(0.5) * pi_low<T> : T(0);
  const T angle = atan_of(steep ? T(1) / t : t, T(1), high, low, steep ? T(-1) : T(1));
  return std::copysign(angle, x);
}
/// The angle of (x, y), from -pi to pi.
template <class T>
QUIPU_INLINE T atan2(T y, T x) {
  using Limits = std::numeric_limits<T>;
  const T a = std::abs(y), b = std::abs(x);
  const bool steep = a > b, both_infinite = a == Limits::infinity() && b == Limits::infinity();
  const T scale = (steep ? a : b) > Limits::max() / T(4) ? T(0.25) : T(1);  // for their sum
  const T small = both_infinite ? T(1) : (steep ? b : a) * scale;
  T large = both_infinite ? T(1) : (steep ? a : b) * scale;
  large = large == T(0) ? T(1) : large;
  // Steep: pi / 2 - angle; to the left: pi - that.
  const bool left = std::signbit(x);
  const T high = steep ? T(0.5) * pi_high<T> : left ? pi_high<T> : T(0);
  const T low = steep ? T(0.5) * pi_low<T> : left ? pi_low<T> : T(0);
  return std::copysign(atan_of(small, large, high, low, steep != left ? T(-1) : T(1)), y);
}

/// e^x / 2 for x >= 0, which overflows only where sinh and cosh do.
template <class T>
QUIPU_INLINE T half_exp(T x) {
  constexpr T highest = sizeof(T) == 4 ? T(90) : T(711);
  const SplitExp<T> e = split_exp(x > highest ? highest : x);
  const T half = nearest(e.k * T(0.5));
  return (T(0.5) + T(0.5) * e.tail) * two_to(half) * two_to(e.k - half);
}
template <class T>
QUIPU_INLINE T cosh(T x) {
  const T half = half_exp(std::abs(x));
  return half + T(0.25) / half;
}
template <class T>
QUIPU_INLINE T sinh(T x) {
  const T t = std::abs(x);
  const T e = expm1(t > T(1) ? T(1) : t);
  const T near = T(0.5) * (e + e / (e + T(1)));
  const T half = half_exp(t);
  return std::copysign(t <= T(1) ? near : half - T(0.25) / half, x);
}

template <class T>
QUIPU_INLINE T asinh(T x) {
  constexpr T large = sizeof(T) == 4 ? T(0x1p14) : T(0x1p30);  // from here on log(2 |x|)
  const T t = std::abs(x);
  const T s = t > large ? large : t;
  const T near = log1p(s + s * s / (T(1) + std::sqrt(T(1) + s * s)));
  const T far = log(t) + T(0x1.62e42fefa39efp-1);
  return std::copysign(t > large ? far : near, x);
}
template <class T>
QUIPU_INLINE T acosh(T x) {
  constexpr T large = sizeof(T) == 4 ? T(0x1p14) : T(0x1p30);
  const T s = (x > large ? large : x) - T(1);
  const T near = log1p(s + std::sqrt(s * (s + T(2))));
  const T y = x > large ? log(x) + T(0x1.62e42fefa39efp-1) : near;
  return x < T(1) ? std::numeric_limits<T>::quiet_NaN() : y;
}
template <class T>
QUIPU_INLINE T atanh(T x) {
  const T t = std::abs(x);
  return std::copysign(T(0.5) * log1p(T(2) * (t / (T(1) - t))), x);
}

/// log(1 + e^x)
template <class T>
QUIPU_INLINE T softplus(T x) {
  return (x > T(0) ? x : T(0)) + log1p(exp_below(-std::abs(x)));
}

/// tanh(softplus(x)) and its derivative, rational in e^-|x|.
template <class T>
struct MishGate {
  T value, slope;
};
template <class T>
QUIPU_INLINE MishGate<T> mish_gate(T x) {
  const bool below = x < T(0);
  const T e = exp_below(-std::abs(x));
  // With w = e^x the gate is n / (n + 2), n = w (w + 2); above 0 both are divided by w^2.
  const T n = below ? e * (e + T(2)) : T(1) + T(2) * e;
  const T whole = below ? n + T(2) : n + T(2) * e * e;
  const T inverse = T(1) / whole;
  const T rise = below ? T(4) * e * (T(1) + e) : T(4) * e * e * (T(1) + e);
  return {n * inverse, rise * inverse * inverse};
}
template <class T>
QUIPU_INLINE T mish(T x) {
  return x * mish_gate(x).value;
}
template <class T>
QUIPU_INLINE T mish_slope(T x) {
  const MishGate<T> gate = mish_gate(x);
  return gate.value + x * gate.slope;
}

/// gelu with tanh: x sigmoid(2 u), where u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
QUIPU_INLINE T gelu_tanh_argument(T x) {
  return T(0x1.9884533d43651p0) * x * (T(1) + T(0.044715) * x * x);
}
template <class T>
QUIPU_INLINE T gelu_tanh(T x) {
  return x * logistic(gelu_tanh_argument(x)).value;
}
template <class T>
QUIPU_INLINE T gelu_tanh_slope(T x) {
  x = x < T(-32) ? T(-32) : x > T(32) ? T(32) : x;  // 0 and 1 there, as beyond
  const Logistic<T> s = logistic(gelu_tanh_argument(x));
  const T rise = T(0x1.9884533d43651p0) * (T(1) + T(3 * 0.044715) * x * x);
  return s.value * (T(1) + x * s.rest * rise);
}

}  // namespace quipu::detail::on_cpu::math
