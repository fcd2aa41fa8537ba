#pragma once
// The pointwise functions of ops/pointwise/kernels.h on the device, for f32, f64 and i64.
#include <cmath>
#include <limits>

#include "element.cuh"
#include "quipu/cuda/ptx.h"
#include "quipu/cuda/tile/rare_functions.cuh"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail::on_cuda {

namespace math {

// Where results are stored in 16 bits (E), a few hundred units in the last place of f32 disappear
// in their rounding, and each exponential or quotient is one approximate instruction. None of these
// functions has a branch.

/// 1 / x for x from 1 on.
template <class E, class T>
__device__ __forceinline__ T inverse_of(T x) {
  if constexpr (is_reduced_v<E>) {
    return ptx::reciprocal(x);
  } else if constexpr (std::is_same_v<T, float>) {
    const T near = ptx::reciprocal(x);
    return std::fma(near, std::fma(-x, near, T(1)), near);  // one step of Newton's
  } else {
    return T(1) / x;
  }
}
/// The root of e^-x for x from 0 on. It is a normal number until its square is 0.
template <class E, class T>
__device__ __forceinline__ T root_of_decay(T x) {
  if constexpr (is_reduced_v<E>) {
    return ptx::exp2_flushed(x * T(-0.72134752044448170));  // log2(e) / 2
  } else {
    return std::exp(T(-0.5) * x);
  }
}

/// sigmoid(x) and 1 - sigmoid(x), both accurate where they are small.
template <class T>
struct Logistic {
  T value, rest;
};
/// Both as below^2 large and above^2 large, of which `below` or `above` is 1: products of these
/// become subnormal in their last factor only.
template <class E, class T>
struct LogisticFactors {
  __device__ __forceinline__ explicit LogisticFactors(T x) {
    const T root = root_of_decay<E>(std::abs(x));
    large = inverse_of<E>(T(1) + root * root);
    below = x < T(0) ? root : T(1);
    above = x < T(0) ? T(1) : root;
  }
  T large, below, above;
};
template <class E, class T>
__device__ __forceinline__ Logistic<T> logistic(T x) {
  const LogisticFactors<E, T> f(x);
  return {f.below * (f.below * f.large), f.above * (f.above * f.large)};
}
template <class E, class T>
__device__ __forceinline__ T sigmoid_grad(T d, T x) {
  const LogisticFactors<E, T> f(x);
  const T root_of_slope = f.below * f.above * f.large;
  return d * root_of_slope * root_of_slope;
}
template <class E, class T>
__device__ __forceinline__ T silu(T x) {
  const LogisticFactors<E, T> f(x);
  return x * f.below * (f.below * f.large);
}
template <class E, class T>
__device__ __forceinline__ T silu_grad(T d, T x) {
  const LogisticFactors<E, T> f(x);
  const T rest = f.above * (f.above * f.large);
  return d * f.below * (f.below * f.large * (T(1) + x * rest));
}

/// e^(-x^2 / 2) as the square of this.
template <class E, class T>
__device__ __forceinline__ T root_of_bell(T x) {
  return root_of_decay<E>(T(0.5) * x * x);
}
/// For 16 bits Phi(-|x|) = e^(-x^2 / 2) t Q(t) with t = 1 / (1 + 0.31 |x|), where Q is the
/// polynomial of degree 5 with the least relative error up to |x| = 15, 2^-17.7.
template <class E, class T>
__device__ __forceinline__ T normal_cdf(T x) {
  if constexpr (is_reduced_v<E>) {
    const T root = root_of_bell<E>(x), t = ptx::reciprocal(T(1) + T(0.31) * std::abs(x));
    T q = T(-0.0739289942);
    for (const double c : {0.1804498814, 0.01574527056, 0.1334294688, 0.1204413574, 0.1238606948}) {
      q = q * t + static_cast<T>(c);
    }
    const T small = root * (root * (q * t));
    return x < T(0) ? small : T(1) - small;
  } else if constexpr (std::is_same_v<T, float>) {
    return normcdff(x);
  } else {
    return normcdf(x);
  }
}
template <class E, class T>
__device__ __forceinline__ T normal_density(T x) {
  constexpr T peak = T(0.3989422804014326779);
  if constexpr (is_reduced_v<E>) return root_of_bell<E>(x) * (root_of_bell<E>(x) * peak);
  return std::exp(T(-0.5) * x * x) * peak;
}
/// NaN wins.
template <class T>
__device__ __forceinline__ T maximum(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T minimum(T a, T b) {
  return a < b || a != a ? a : b;
}
/// The share of d that x gets as an operand of maximum or minimum: all if it wins, half if both are
/// equal. NaN wins.
template <class T>
__device__ __forceinline__ T share_of(T d, bool wins, T x, T y) {
  const bool x_is = x == x, y_is = y == y;  // numbers
  const bool all = wins || (!x_is && y_is), both = x == y || (!x_is && !y_is);
  return all ? d : both ? T(0.5) * d : T(0);
}

}  // namespace math

template <Pointwise F, class T>
__device__ __forceinline__ T apply_general(T a, T b, T c) {
  using enum Pointwise;
  using W = Wrapping<T>;
  const W x = static_cast<W>(a), y = static_cast<W>(b), z = static_cast<W>(c);
  if constexpr (F == copy) return a;
  if constexpr (F == neg) return static_cast<T>(-x);
  if constexpr (F == abs && std::is_floating_point_v<T>) return std::abs(a);
  if constexpr (F == abs) return a < T(0) ? static_cast<T>(-x) : a;
  if constexpr (F == sign) return a > T(0) ? T(1) : a < T(0) ? T(-1) : a;
  if constexpr (F == logical_not) return T(a == T(0));
  if constexpr (F == add) return static_cast<T>(x + y);
  if constexpr (F == sub) return static_cast<T>(x - y);
  if constexpr (F == mul) return static_cast<T>(x * y);
  if constexpr (F == maximum) return math::maximum(a, b);
  if constexpr (F == minimum) return math::minimum(a, b);
  if constexpr (F == eq) return T(a == b);
  if constexpr (F == ne) return T(a != b);
  if constexpr (F == lt) return T(a < b);
  if constexpr (F == le) return T(a <= b);
  if constexpr (F == gt) return T(a > b);
  if constexpr (F == ge) return T(a >= b);
  if constexpr (F == logical_and) return T((a != T(0)) & (b != T(0)));
  if constexpr (F == logical_or) return T((a != T(0)) | (b != T(0)));
  if constexpr (F == where) return a != T(0) ? b : c;
  if constexpr (F == clamp) {
    const T raised = a < b ? b : a;
    return raised > c ? c : raised;
  }
  if constexpr (F == fma) return static_cast<T>(x + y * z);
  if constexpr (F == mul_mul) return static_cast<T>(x * y * z);
}

template <Pointwise F, class E, class T>
__device__ __forceinline__ T apply_real(T a, T b, T c) {
  using enum Pointwise;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  if constexpr (F == exp) return std::exp(a);
  if constexpr (F == log) return std::log(a);
  if constexpr (F == sqrt) return std::sqrt(a);
  if constexpr (F == rsqrt) return T(1) / std::sqrt(a);
  if constexpr (F == tanh) return std::tanh(a);
  if constexpr (F == sin) return std::sin(a);
  if constexpr (F == cos) return std::cos(a);
  if constexpr (F == reciprocal) return T(1) / a;
  if constexpr (F == relu) return a <= T(0) ? T(0) : a;
  if constexpr (F == sigmoid) return math::logistic<E>(a).value;
  if constexpr (F == silu) return math::silu<E>(a);
  if constexpr (F == normal_cdf) return math::normal_cdf<E>(a);
  if constexpr (F == gelu) return a * math::normal_cdf<E>(a);
  if constexpr (F == sub_sub) return (a - b) - c;
  if constexpr (F == mul_silu) return a * math::silu<E>(b);
  if constexpr (F == div) return a / b;
  if constexpr (F == pow) return std::pow(a, b);
  if constexpr (F == square_difference) return (a - b) * (a - b);
  if constexpr (F == exp_difference) return a == -infinity ? T(0) : std::exp(a - b);
  if constexpr (F == mul_exp_difference) return b == -infinity ? T(0) : a * std::exp(b - c);
  if constexpr (F == mul_neg) return -a * b;
  if constexpr (F == mul_difference) return a * (b - c);
  if constexpr (F == mul_div) return a * b / c;
  // Gradients.
  if constexpr (F == sqrt_grad) return a / (T(2) * b);
  if constexpr (F == rsqrt_grad) return T(-0.5) * a * (b * b * b);
  if constexpr (F == tanh_grad) return a * ((T(1) - b) * (T(1) + b));
  if constexpr (F == sin_grad) return a * std::cos(b);
  if constexpr (F == cos_grad) return -a * std::sin(b);
  if constexpr (F == abs_grad) return b > T(0) ? a : b < T(0) ? -a : b;
  if constexpr (F == relu_grad) return b <= T(0) ? T(0) : a;
  if constexpr (F == sigmoid_grad) return math::sigmoid_grad<E>(a, b);
  if constexpr (F == silu_grad) return math::silu_grad<E>(a, b);
  if constexpr (F == normal_cdf_grad) return a * math::normal_density<E>(b);
  if constexpr (F == gelu_grad)
    return a * (math::normal_cdf<E>(b) + b * math::normal_density<E>(b));
  if constexpr (F == mul_silu_grad) return math::silu_grad<E>(a * c, b);
  if constexpr (F == div_grad_b) return -a * b / c;
  if constexpr (F == pow_grad_a) return c == T(0) ? T(0) : a * c * std::pow(b, c - T(1));
  if constexpr (F == pow_grad_b) {
    return b == T(0) && std::abs(c) <= T(1) ? T(0) : a * c * std::log(b);
  }
  if constexpr (F == where_first) return a != T(0) ? b : T(0);
  if constexpr (F == where_second) return a != T(0) ? T(0) : b;
  if constexpr (F == maximum_grad) return math::share_of(a, b > c, b, c);
  if constexpr (F == minimum_grad) return math::share_of(a, b < c, b, c);
  if constexpr (F == clamp_grad_low) return b < c ? T(0) : a;
  if constexpr (F == clamp_grad_high) return b > c ? T(0) : a;
}

/// F of up to three numbers, for the types that the table says. E is the type that the result is
/// rounded to.
template <Pointwise F, class E = void, class T>
__device__ __forceinline__ T apply(T a, T b, T c) {
  if constexpr (!traits_of(F).in_packs) {
    return apply_rare<F>(a, b, c);
  } else if constexpr (traits_of(F).for_whole_numbers) {
    return apply_general<F>(a, b, c);
  } else {
    return apply_real<F, E>(a, b, c);
  }
}

}  // namespace quipu::detail::on_cuda
