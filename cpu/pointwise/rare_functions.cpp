// The rarer functions, those that move elements singly on a GPU. Loops as in functions.cpp.
#include <cmath>
#include <limits>

#include "loops.h"
#include "quipu/cpu/simd/vector_functions.h"
#include "quipu/cpu/simd/wrapping.h"

namespace quipu::detail::on_cpu {
namespace {

/// Of the sign of b, as in floor division. A function call an element for floating types, which is
/// exact where a quotient is not.
template <class T>
QUIPU_INLINE T remainder_of(T a, T b) {
  T part;
  if constexpr (std::is_floating_point_v<T>) {
    part = std::fmod(a, b);
  } else {
    part = b == 0 || b == -1 ? 0 : a % b;
  }
  return part != T(0) && (part < T(0)) != (b < T(0)) ? part + b : part;
}

/// For floating types and whole numbers, which are rounded already and always finite.
template <class T>
PointwiseFunction<T> general_function(Pointwise f) {
  constexpr bool whole = std::is_integral_v<T>;
  const auto choose = [](auto of_whole, auto of_real) {
    if constexpr (whole) {
      return map<T>(of_whole);
    } else {
      return map<T>(of_real);
    }
  };
  const auto same = [](T a) { return a; };
  const auto never = [](T) { return T(0); };
  const auto always = [](T) { return T(1); };
  switch (f) {
    case Pointwise::floor: return choose(same, [](auto a) { return std::floor(a); });
    case Pointwise::ceil: return choose(same, [](auto a) { return std::ceil(a); });
    case Pointwise::round: return choose(same, [](auto a) { return std::nearbyint(a); });
    case Pointwise::trunc: return choose(same, [](auto a) { return std::trunc(a); });
    case Pointwise::isnan: return choose(never, [](T a) { return T(a != a); });
    case Pointwise::isinf: return choose(never, [](T a) { return T((a == a) & !(a - a == T(0))); });
    case Pointwise::isfinite: return choose(always, [](T a) { return T(a - a == T(0)); });
    case Pointwise::remainder: return map<T>([](T a, T b) { return remainder_of(a, b); });
    case Pointwise::logical_xor:
      return map<T>([](T a, T b) { return T((a != T(0)) != (b != T(0))); });
    default: return nullptr;
  }
}

PointwiseFunction<std::int64_t> whole_function(Pointwise f) {
  using I = std::int64_t;
  switch (f) {
    case Pointwise::bit_and: return map<I>([](I a, I b) { return a & b; });
    case Pointwise::bit_or: return map<I>([](I a, I b) { return a | b; });
    case Pointwise::bit_xor: return map<I>([](I a, I b) { return a ^ b; });
    case Pointwise::shift_left:
      return map<I>([](I a, I b) {
        const bool within = (b >= 0) & (b <= 63);
        return within ? static_cast<I>(static_cast<std::uint64_t>(a) << (b & 63)) : I(0);
      });
    case Pointwise::shift_right:
      return map<I>([](I a, I b) { return a >> (((b >= 0) & (b <= 63)) != 0 ? b : 63); });
    default: return nullptr;
  }
}

template <class T>
PointwiseFunction<T> real_function(Pointwise f) {
  using math::SinCos;
  switch (f) {
    case Pointwise::sinh: return map<T>([](T a) { return math::sinh(a); });
    case Pointwise::cosh: return map<T>([](T a) { return math::cosh(a); });
    case Pointwise::tan: return map_angle_a<T>([](T, SinCos<T> x) { return x.sin / x.cos; });
    case Pointwise::asin: return map<T>([](T a) { return math::asin(a); });
    case Pointwise::acos: return map<T>([](T a) { return math::acos(a); });
    case Pointwise::atan: return map<T>([](T a) { return math::atan(a); });
    case Pointwise::asinh: return map<T>([](T a) { return math::asinh(a); });
    case Pointwise::acosh: return map<T>([](T a) { return math::acosh(a); });
    case Pointwise::atanh: return map<T>([](T a) { return math::atanh(a); });
    case Pointwise::log1p: return map<T>([](T a) { return math::log1p(a); });
    case Pointwise::expm1: return map<T>([](T a) { return math::expm1(a); });
    case Pointwise::erf: return map<T>([](T a) { return math::erf(a); });
    case Pointwise::softplus: return map<T>([](T a) { return math::softplus(a); });
    case Pointwise::mish: return map<T>([](T a) { return math::mish(a); });
    case Pointwise::hardswish:
      return map<T>([](T a) {
        const T raised = a + T(3) < T(0) ? T(0) : a + T(3);
        return a * (raised > T(6) ? T(6) : raised) / T(6);
      });
    case Pointwise::gelu_tanh: return map<T>([](T a) { return math::gelu_tanh(a); });
    case Pointwise::elu:
      return map<T>([](T a, T alpha) { return a > T(0) ? a : alpha * math::expm1(a); });
    case Pointwise::leaky_relu:
      return map<T>([](T a, T slope) { return a > T(0) ? a : slope * a; });
    case Pointwise::atan2: return map<T>([](T a, T b) { return math::atan2(a, b); });
    default: return nullptr;
  }
}

/// d / sqrt(1 - x^2)
template <class T>
QUIPU_INLINE T over_circle(T d, T x) {
  return d / std::sqrt((T(1) - x) * (T(1) + x));
}
/// d x / (x^2 + y^2), in a form that does not overflow.
template <class T>
QUIPU_INLINE T over_square_sum(T d, T x, T y) {
  return d / (x + y * (y / x));
}

template <class T>
PointwiseFunction<T> gradient_function(Pointwise f) {
  constexpr T bell_peak = T(0x1.20dd750429b6dp0);  // 2 / sqrt(pi)
  switch (f) {
    case Pointwise::mul_sinh: return map<T>([](T d, T x) { return d * math::sinh(x); });
    case Pointwise::mul_cosh: return map<T>([](T d, T x) { return d * math::cosh(x); });
    case Pointwise::mul_square_plus_one: return map<T>([](T d, T o) { return d * (T(1) + o * o); });
    case Pointwise::reciprocal_grad: return map<T>([](T d, T o) { return -d * o * o; });
    case Pointwise::asin_grad: return map<T>([](T d, T x) { return over_circle(d, x); });
    case Pointwise::acos_grad: return map<T>([](T d, T x) { return -over_circle(d, x); });
    case Pointwise::atan_grad: return map<T>([](T d, T x) { return d / (T(1) + x * x); });
    case Pointwise::asinh_grad:
      return map<T>([](T d, T x) {
        const T t = std::abs(x);
        return t > T(0x1p30) ? d / t : d / std::sqrt(T(1) + t * t);
      });
    case Pointwise::acosh_grad:
      return map<T>([](T d, T x) { return d / (std::sqrt(x - T(1)) * std::sqrt(x + T(1))); });
    case Pointwise::atanh_grad:
      return map<T>([](T d, T x) { return d / ((T(1) - x) * (T(1) + x)); });
    case Pointwise::log1p_grad: return map<T>([](T d, T x) { return d / (T(1) + x); });
    case Pointwise::erf_grad:
      return map<T>(
          [](T d, T x) { return d * (bell_peak * math::bell(T(0x1.6a09e667f3bcdp0) * x)); });
    case Pointwise::mul_sigmoid:
      return map<T>([](T d, T x) { return d * math::logistic(x).value; });
    case Pointwise::mish_grad: return map<T>([](T d, T x) { return d * math::mish_slope(x); });
    case Pointwise::hardswish_grad:
      return map<T>([](T d, T x) {
        return x <= T(-3) ? T(0) : x >= T(3) ? d : d * (T(2) * x + T(3)) / T(6);
      });
    case Pointwise::gelu_tanh_grad:
      return map<T>([](T d, T x) { return d * math::gelu_tanh_slope(x); });
    case Pointwise::elu_grad:
      return map<T>([](T d, T x, T alpha) {
        return x > T(0) ? d : d * alpha * math::exp_below(x > T(0) ? T(0) : x);
      });
    case Pointwise::leaky_relu_grad:
      return map<T>([](T d, T x, T slope) { return x > T(0) ? d : d * slope; });
    case Pointwise::atan2_grad_a:
      return map<T>([](T d, T x, T y) { return over_square_sum(d, x, y); });
    case Pointwise::atan2_grad_b:
      return map<T>([](T d, T x, T y) { return -over_square_sum(d, x, y); });
    case Pointwise::remainder_grad_b:
      return map<T>(
          [](T d, T x, T y) { return -d * std::nearbyint((x - remainder_of(x, y)) / y); });
    default: return nullptr;
  }
}

}  // namespace

template <class T>
PointwiseFunction<T> rare_function(Pointwise f) {
  PointwiseFunction<T> found = general_function<T>(f);
  if constexpr (std::is_floating_point_v<T>) {
    if (!found) found = real_function<T>(f);
    if (!found) found = gradient_function<T>(f);
  } else {
    if (!found) found = whole_function(f);
  }
  return found;
}
template PointwiseFunction<float> rare_function(Pointwise);
template PointwiseFunction<double> rare_function(Pointwise);
template PointwiseFunction<std::int64_t> rare_function(Pointwise);

}  // namespace quipu::detail::on_cpu
