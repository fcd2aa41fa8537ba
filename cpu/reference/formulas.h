#pragma once
// The formula of each row of functions.def, by its name. Internal to the reference.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "quipu/cpu/reference/values.h"

namespace quipu::detail::reference {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// A product that wraps where it is whole.
template <class T>
T times(T a, T b) {
  using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  return static_cast<T>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
}
template <class T>
T negative(T a) {
  return times(a, T(-1));
}

/// A function of floating numbers that leaves whole ones alone.
template <class T, class F>
T rounded(T a, F f) {
  if constexpr (std::is_integral_v<T>) {
    return a;
  } else {
    return f(a);
  }
}
template <class T>
bool is_finite(T a) {
  if constexpr (std::is_integral_v<T>) {
    return true;
  } else {
    return std::isfinite(a);
  }
}

/// By the names of the table; `auto` is for whole numbers, too.
namespace formula {

inline constexpr auto copy = [](auto a) { return a; };
inline constexpr auto neg = [](auto a) { return negative(a); };
inline constexpr auto exp = [](double a) { return std::exp(a); };
inline constexpr auto log = [](double a) { return std::log(a); };
inline constexpr auto sqrt = [](double a) { return std::sqrt(a); };
inline constexpr auto rsqrt = [](double a) { return 1 / std::sqrt(a); };
inline constexpr auto tanh = [](double a) { return std::tanh(a); };
inline constexpr auto sin = [](double a) { return std::sin(a); };
inline constexpr auto cos = [](double a) { return std::cos(a); };
inline constexpr auto abs = [](auto a) { return a < 0 ? negative(a) : a == 0 ? 0 : a; };
inline constexpr auto sign = [](auto a) {
  return a > 0 ? decltype(a)(1) : a < 0 ? decltype(a)(-1) : a;
};
inline constexpr auto reciprocal = [](double a) { return 1 / a; };
inline constexpr auto relu = [](double a) { return a <= 0 ? 0 : a; };
// Where e^-a is infinite, e^a / (1 + e^a) is not 0.
inline constexpr auto sigmoid = [](double a) {
  return a < 0 ? std::exp(a) / (1 + std::exp(a)) : 1 / (1 + std::exp(-a));
};
inline constexpr auto silu = [](double a) { return a * sigmoid(a); };
inline constexpr auto normal_cdf = [](double a) { return std::erfc(-a / std::numbers::sqrt2) / 2; };
inline constexpr auto gelu = [](double a) { return a * normal_cdf(a); };
inline constexpr auto logical_not = [](auto a) { return a == 0; };
inline constexpr auto add = [](auto a, auto b) { return plus(a, b); };
inline constexpr auto sub = [](auto a, auto b) { return plus(a, negative(b)); };
inline constexpr auto mul = [](auto a, auto b) { return times(a, b); };
inline constexpr auto div = [](double a, double b) { return a / b; };
inline constexpr auto pow = [](double a, double b) { return std::pow(a, b); };
inline constexpr auto maximum = [](auto a, auto b) { return a > b || a != a ? a : b; };
inline constexpr auto minimum = [](auto a, auto b) { return a < b || a != a ? a : b; };
inline constexpr auto eq = [](auto a, auto b) { return a == b; };
inline constexpr auto ne = [](auto a, auto b) { return a != b; };
inline constexpr auto lt = [](auto a, auto b) { return a < b; };
inline constexpr auto le = [](auto a, auto b) { return a <= b; };
inline constexpr auto gt = [](auto a, auto b) { return a > b; };
inline constexpr auto ge = [](auto a, auto b) { return a >= b; };
inline constexpr auto logical_and = [](auto a, auto b) { return a != 0 && b != 0; };
inline constexpr auto logical_or = [](auto a, auto b) { return a != 0 || b != 0; };
inline constexpr auto where = [](auto a, auto b, auto c) { return a != 0 ? b : c; };
inline constexpr auto clamp = [](auto a, auto low, auto high) {
  const auto raised = a < low ? low : a;
  return raised > high ? high : raised;
};
inline constexpr auto fma = [](auto a, auto b, auto c) { return plus(a, times(b, c)); };
inline constexpr auto sub_sub = [](double a, double b, double c) { return (a - b) - c; };
inline constexpr auto mul_silu = [](double a, double b) { return a * silu(b); };

// The rarer ones.
inline constexpr auto sinh = [](double a) { return std::sinh(a); };
inline constexpr auto cosh = [](double a) { return std::cosh(a); };
inline constexpr auto tan = [](double a) { return std::tan(a); };
inline constexpr auto asin = [](double a) { return std::asin(a); };
inline constexpr auto acos = [](double a) { return std::acos(a); };
inline constexpr auto atan = [](double a) { return std::atan(a); };
inline constexpr auto asinh = [](double a) { return std::asinh(a); };
inline constexpr auto acosh = [](double a) { return std::acosh(a); };
inline constexpr auto atanh = [](double a) { return std::atanh(a); };
inline constexpr auto log1p = [](double a) { return std::log1p(a); };
inline constexpr auto expm1 = [](double a) { return std::expm1(a); };
inline constexpr auto erf = [](double a) { return std::erf(a); };
inline constexpr auto floor = [](auto a) {
  return rounded(a, [](double x) { return std::floor(x); });
};
inline constexpr auto ceil = [](auto a) {
  return rounded(a, [](double x) { return std::ceil(x); });
};
inline constexpr auto round = [](auto a) {
  return rounded(a, [](double x) { return std::nearbyint(x); });
};
inline constexpr auto trunc = [](auto a) {
  return rounded(a, [](double x) { return std::trunc(x); });
};
inline constexpr auto isnan = [](auto a) { return a != a; };
inline constexpr auto isinf = [](auto a) { return a == a && !is_finite(a); };
inline constexpr auto isfinite = [](auto a) { return is_finite(a); };
inline constexpr auto softplus = [](double a) {
  return std::isnan(a) ? a : std::max(a, 0.0) + std::log1p(std::exp(-std::abs(a)));
};
inline constexpr auto mish = [](double a) { return a * std::tanh(softplus(a)); };
inline constexpr auto hardswish = [](double a) { return a * std::clamp(a + 3, 0.0, 6.0) / 6; };
/// 2 sqrt(2 / pi) (a + 0.044715 a^3)
inline constexpr auto gelu_tanh_argument = [](double a) {
  return 2 * std::sqrt(2 / std::numbers::pi) * (a + 0.044715 * a * a * a);
};
inline constexpr auto gelu_tanh = [](double a) { return a * sigmoid(gelu_tanh_argument(a)); };
inline constexpr auto elu = [](double a, double alpha) {
  return a > 0 ? a : alpha * std::expm1(a);
};
inline constexpr auto leaky_relu = [](double a, double slope) { return a > 0 ? a : slope * a; };
inline constexpr auto atan2 = [](double a, double b) { return std::atan2(a, b); };
inline constexpr auto remainder = [](auto a, auto b) {
  if constexpr (std::is_floating_point_v<decltype(a)>) {
    const double part = std::fmod(a, b);
    return part != 0 && (part < 0) != (b < 0) ? part + b : part;
  } else {
    const auto part = b == 0 || b == -1 ? 0 : a % b;
    return part != 0 && (part < 0) != (b < 0) ? part + b : part;
  }
};
inline constexpr auto logical_xor = [](auto a, auto b) { return (a != 0) != (b != 0); };
inline constexpr auto bit_and = [](std::int64_t a, std::int64_t b) { return a & b; };
inline constexpr auto bit_or = [](std::int64_t a, std::int64_t b) { return a | b; };
inline constexpr auto bit_xor = [](std::int64_t a, std::int64_t b) { return a ^ b; };
inline constexpr auto shift_left = [](std::int64_t a, std::int64_t b) {
  return b < 0 || b > 63 ? 0 : static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b);
};
inline constexpr auto shift_right = [](std::int64_t a, std::int64_t b) {
  return a >> (b < 0 || b > 63 ? 63 : b);
};

// For backward.
inline constexpr auto square_difference = [](double a, double b) { return (a - b) * (a - b); };
inline constexpr auto exp_difference = [](double a, double b) {
  return a == -infinity ? 0 : std::exp(a - b);
};
inline constexpr auto mul_exp_difference = [](double a, double b, double c) {
  return b == -infinity ? 0 : a * std::exp(b - c);
};
inline constexpr auto mul_neg = [](double a, double b) { return -a * b; };
inline constexpr auto sqrt_grad = [](double d, double o) { return d / (2 * o); };
inline constexpr auto rsqrt_grad = [](double d, double o) { return -d * o * o * o / 2; };
inline constexpr auto tanh_grad = [](double d, double o) { return d * (1 - o) * (1 + o); };
inline constexpr auto sin_grad = [](double d, double x) { return d * std::cos(x); };
inline constexpr auto cos_grad = [](double d, double x) { return -d * std::sin(x); };
inline constexpr auto abs_grad = [](double d, double x) { return x > 0 ? d : x < 0 ? -d : x; };
inline constexpr auto relu_grad = [](double d, double x) { return x <= 0 ? 0 : d; };
inline constexpr auto sigmoid_grad = [](double d, double x) {
  return d * sigmoid(x) * sigmoid(-x);
};
inline constexpr auto silu_grad = [](double d, double x) {
  return d * sigmoid(x) * (1 + x * sigmoid(-x));
};
inline constexpr auto normal_cdf_grad = [](double d, double x) {
  return d * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
};
inline constexpr auto gelu_grad = [](double d, double x) {
  return d * (normal_cdf(x) + x * normal_cdf_grad(1, x));
};
inline constexpr auto mul_silu_grad = [](double d, double x, double y) {
  return d * y * silu_grad(1, x);
};
inline constexpr auto mul_sinh = [](double d, double x) { return d * std::sinh(x); };
inline constexpr auto mul_cosh = [](double d, double x) { return d * std::cosh(x); };
inline constexpr auto mul_square_plus_one = [](double d, double o) { return d * (1 + o * o); };
inline constexpr auto reciprocal_grad = [](double d, double o) { return -d * o * o; };
inline constexpr auto asin_grad = [](double d, double x) {
  return d / std::sqrt((1 - x) * (1 + x));
};
inline constexpr auto acos_grad = [](double d, double x) {
  return -d / std::sqrt((1 - x) * (1 + x));
};
inline constexpr auto atan_grad = [](double d, double x) { return d / (1 + x * x); };
inline constexpr auto asinh_grad = [](double d, double x) { return d / std::hypot(x, 1.0); };
inline constexpr auto acosh_grad = [](double d, double x) {
  return d / (std::sqrt(x - 1) * std::sqrt(x + 1));
};
inline constexpr auto atanh_grad = [](double d, double x) { return d / ((1 - x) * (1 + x)); };
inline constexpr auto log1p_grad = [](double d, double x) { return d / (1 + x); };
inline constexpr auto erf_grad = [](double d, double x) {
  return d * 2 * std::numbers::inv_sqrtpi * std::exp(-x * x);
};
inline constexpr auto mul_sigmoid = [](double d, double x) { return d * sigmoid(x); };
inline constexpr auto mish_grad = [](double d, double x) {
  const double gate = std::tanh(softplus(x));
  return d * (gate + x * (1 - gate * gate) * sigmoid(x));
};
inline constexpr auto hardswish_grad = [](double d, double x) {
  return x <= -3 ? 0 : x >= 3 ? d : d * (2 * x + 3) / 6;
};
inline constexpr auto gelu_tanh_grad = [](double d, double x) {
  x = std::clamp(x, -32.0, 32.0);  // beyond which the slope is 0 or 1
  const double s = sigmoid(gelu_tanh_argument(x)), rest = sigmoid(-gelu_tanh_argument(x));
  const double rise = 2 * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  return d * s * (1 + x * rest * rise);
};
inline constexpr auto elu_grad = [](double d, double x, double alpha) {
  return x > 0 ? d : d * alpha * std::exp(x);
};
inline constexpr auto leaky_relu_grad = [](double d, double x, double slope) {
  return x > 0 ? d : d * slope;
};
inline constexpr auto atan2_grad_a = [](double d, double x, double y) {
  return d / (x + y * (y / x));
};
inline constexpr auto atan2_grad_b = [](double d, double x, double y) {
  return -d / (x + y * (y / x));
};
inline constexpr auto remainder_grad_b = [](double d, double x, double y) {
  return -d * std::nearbyint((x - remainder(x, y)) / y);
};
inline constexpr auto div_grad_b = [](double d, double o, double y) { return -d * o / y; };
inline constexpr auto pow_grad_a = [](double d, double x, double y) {
  return y == 0 ? 0 : d * y * std::pow(x, y - 1);
};
inline constexpr auto pow_grad_b = [](double d, double x, double o) {
  return x == 0 && std::isfinite(o) ? 0 : d * o * std::log(x);
};
inline constexpr auto where_first = [](double a, double d) { return a != 0 ? d : 0; };
inline constexpr auto where_second = [](double a, double d) { return a != 0 ? 0 : d; };
/// What x gets of d where it may win against y: all, or half if they are alike. NaN wins.
inline constexpr auto share = [](double d, bool wins, double x, double y) {
  const bool x_is = !std::isnan(x), y_is = !std::isnan(y);  // numbers
  return wins || (!x_is && y_is) ? d : x == y || (!x_is && !y_is) ? d / 2 : 0;
};
inline constexpr auto maximum_grad = [](double d, double x, double y) {
  return share(d, x > y, x, y);
};
inline constexpr auto minimum_grad = [](double d, double x, double y) {
  return share(d, x < y, x, y);
};
inline constexpr auto clamp_grad_low = [](double d, double x, double low) {
  return x < low ? 0 : d;
};
inline constexpr auto clamp_grad_high = [](double d, double x, double high) {
  return x > high ? 0 : d;
};
inline constexpr auto mul_difference = [](double a, double b, double c) { return a * (b - c); };
inline constexpr auto mul_mul = [](auto a, auto b, auto c) { return times(times(a, b), c); };
inline constexpr auto mul_div = [](double a, double b, double c) { return a * b / c; };

}  // namespace formula

}  // namespace quipu::detail::reference
