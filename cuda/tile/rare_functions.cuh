#pragma once
// The rarer functions of ops/pointwise/functions.def on the device, for f32, f64 and i64: those
// that move elements singly. By the functions of the CUDA library.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "element.cuh"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail::on_cuda {

namespace math {

/// Of the sign of b, as in floor division.
template <class T>
__device__ __forceinline__ T remainder_of(T a, T b) {
  T part;
  if constexpr (std::is_floating_point_v<T>) {
    part = std::fmod(a, b);
  } else {
    part = b == 0 || b == -1 ? 0 : a % b;
  }
  return part != T(0) && (part < T(0)) != (b < T(0)) ? part + b : part;
}
template <class T>
__device__ __forceinline__ T softplus(T x) {
  return (x > T(0) ? x : T(0)) + std::log1p(std::exp(-std::abs(x)));
}
template <class T>
__device__ __forceinline__ T logistic_of(T x) {
  const T e = std::exp(-std::abs(x));
  return (x < T(0) ? e : T(1)) / (T(1) + e);
}

/// tanh(softplus(x)) and its derivative, rational in e^-|x|.
template <class T>
struct MishGate {
  T value, slope;
};
template <class T>
__device__ __forceinline__ MishGate<T> mish_gate(T x) {
  const bool below = x < T(0);
  const T e = std::exp(-std::abs(x));
  // With w = e^x the gate is n / (n + 2), n = w (w + 2); above 0 both are divided by w^2.
  const T n = below ? e * (e + T(2)) : T(1) + T(2) * e;
  const T inverse = T(1) / (below ? n + T(2) : n + T(2) * e * e);
  const T rise = (below ? T(4) * e : T(4) * e * e) * (T(1) + e);
  return {n * inverse, rise * inverse * inverse};
}

/// 2 sqrt(2 / pi) (x + 0.044715 x^3)
template <class T>
__device__ __forceinline__ T gelu_tanh_argument(T x) {
  return T(1.5957691216057308) * x * (T(1) + T(0.044715) * x * x);
}
template <class T>
__device__ __forceinline__ T gelu_tanh_grad(T d, T x) {
  x = x < T(-32) ? T(-32) : x > T(32) ? T(32) : x;  // slopes are 0 and 1 there, as beyond
  const T u = gelu_tanh_argument(x);
  const T rise = T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * x * x);
  const T e = std::exp(-std::abs(u)), large = T(1) / (T(1) + e), small = e * large;
  return d * (u < T(0) ? small : large) * (T(1) + x * (u < T(0) ? large : small) * rise);
}

/// d x / (x^2 + y^2), in a form that does not overflow.
template <class T>
__device__ __forceinline__ T over_square_sum(T d, T x, T y) {
  return d / (x + y * (y / x));
}

}  // namespace math

/// Whole numbers are rounded already and always finite.
template <Pointwise F>
__device__ __forceinline__ std::int64_t apply_rare(std::int64_t a, std::int64_t b, std::int64_t) {
  using enum Pointwise;
  const bool within = b >= 0 && b <= 63;
  if constexpr (F == isnan || F == isinf) return 0;
  if constexpr (F == isfinite) return 1;
  if constexpr (F == remainder) return math::remainder_of(a, b);
  if constexpr (F == logical_xor) return (a != 0) != (b != 0);
  if constexpr (F == bit_and) return a & b;
  if constexpr (F == bit_or) return a | b;
  if constexpr (F == bit_xor) return a ^ b;
  if constexpr (F == shift_left) {
    return within ? static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b) : 0;
  }
  if constexpr (F == shift_right) return a >> (within ? b : 63);
  return a;
}

template <Pointwise F, class T>
__device__ __forceinline__ T rare_gradient(T d, T x, T y) {
  using enum Pointwise;
  if constexpr (F == mul_sinh) return d * std::sinh(x);
  if constexpr (F == mul_cosh) return d * std::cosh(x);
  if constexpr (F == mul_square_plus_one) return d * (T(1) + x * x);
  if constexpr (F == reciprocal_grad) return -d * x * x;
  if constexpr (F == asin_grad) return d / std::sqrt((T(1) - x) * (T(1) + x));
  if constexpr (F == acos_grad) return -d / std::sqrt((T(1) - x) * (T(1) + x));
  if constexpr (F == atan_grad) return d / (T(1) + x * x);
  if constexpr (F == asinh_grad) {
    return std::abs(x) > T(0x1p30) ? d / std::abs(x) : d / std::sqrt(T(1) + x * x);
  }
  if constexpr (F == acosh_grad) return d / (std::sqrt(x - T(1)) * std::sqrt(x + T(1)));
  if constexpr (F == atanh_grad) return d / ((T(1) - x) * (T(1) + x));
  if constexpr (F == log1p_grad) return d / (T(1) + x);
  if constexpr (F == erf_grad) return d * (T(1.1283791670955126) * std::exp(-x * x));
  if constexpr (F == mul_sigmoid) return d * math::logistic_of(x);
  if constexpr (F == mish_grad) {
    const math::MishGate<T> gate = math::mish_gate(x);
    return d * (gate.value + x * gate.slope);
  }
  if constexpr (F == hardswish_grad) {
    return x <= T(-3) ? T(0) : x >= T(3) ? d : d * (T(2) * x + T(3)) / T(6);
  }
  if constexpr (F == gelu_tanh_grad) return math::gelu_tanh_grad(d, x);
  if constexpr (F == elu_grad) return x > T(0) ? d : d * y * std::exp(x);
  if constexpr (F == leaky_relu_grad) return x > T(0) ? d : d * y;
  if constexpr (F == atan2_grad_a) return math::over_square_sum(d, x, y);
  if constexpr (F == atan2_grad_b) return -math::over_square_sum(d, x, y);
  if constexpr (F == remainder_grad_b) {
    return -d * std::nearbyint((x - math::remainder_of(x, y)) / y);
  }
}

template <Pointwise F, class T>
__device__ __forceinline__ T rare_value(T a, T b) {
  using enum Pointwise;
  if constexpr (F == sinh) return std::sinh(a);
  if constexpr (F == cosh) return std::cosh(a);
  if constexpr (F == tan) return std::tan(a);
  if constexpr (F == asin) return std::asin(a);
  if constexpr (F == acos) return std::acos(a);
  if constexpr (F == atan) return std::atan(a);
  if constexpr (F == asinh) return std::asinh(a);
  if constexpr (F == acosh) return std::acosh(a);
  if constexpr (F == atanh) return std::atanh(a);
  if constexpr (F == log1p) return std::log1p(a);
  if constexpr (F == expm1) return std::expm1(a);
  if constexpr (F == erf) return std::erf(a);
  if constexpr (F == floor) return std::floor(a);
  if constexpr (F == ceil) return std::ceil(a);
  if constexpr (F == round) return std::nearbyint(a);
  if constexpr (F == trunc) return std::trunc(a);
  if constexpr (F == isnan) return T(a != a);
  if constexpr (F == isinf) return T(a == a && !(a - a == T(0)));
  if constexpr (F == isfinite) return T(a - a == T(0));
  if constexpr (F == softplus) return math::softplus(a);
  if constexpr (F == mish) return a * math::mish_gate(a).value;
  if constexpr (F == hardswish) {
    const T raised = a + T(3) < T(0) ? T(0) : a + T(3);
    return a * (raised > T(6) ? T(6) : raised) / T(6);
  }
  if constexpr (F == gelu_tanh) return a * math::logistic_of(math::gelu_tanh_argument(a));
  if constexpr (F == elu) return a > T(0) ? a : b * std::expm1(a);
  if constexpr (F == leaky_relu) return a > T(0) ? a : b * a;
  if constexpr (F == atan2) return std::atan2(a, b);
  if constexpr (F == remainder) return math::remainder_of(a, b);
  if constexpr (F == logical_xor) return T((a != T(0)) != (b != T(0)));
}

template <Pointwise F, class T>
__device__ __forceinline__ T apply_rare(T a, T b, T c) {
  if constexpr (F >= Pointwise::mul_sinh) {  // those for backward stand behind the others
    return rare_gradient<F>(a, b, c);
  } else {
    return rare_value<F>(a, b);
  }
}

}  // namespace quipu::detail::on_cuda
