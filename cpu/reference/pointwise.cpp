// The pointwise functions: a formula for each row of functions.def, applied to every element, and
// sums of them.
#include <numbers>

#include "quipu/cpu/reference/values.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

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

/// By the names of the table; `auto` is for whole numbers, too.
namespace formula {

constexpr auto copy = [](auto a) { return a; };
constexpr auto neg = [](auto a) { return negative(a); };
constexpr auto exp = [](double a) { return std::exp(a); };
constexpr auto log = [](double a) { return std::log(a); };
constexpr auto sqrt = [](double a) { return std::sqrt(a); };
constexpr auto rsqrt = [](double a) { return 1 / std::sqrt(a); };
constexpr auto tanh = [](double a) { return std::tanh(a); };
constexpr auto sin = [](double a) { return std::sin(a); };
constexpr auto cos = [](double a) { return std::cos(a); };
constexpr auto abs = [](auto a) { return a < 0 ? negative(a) : a == 0 ? 0 : a; };
constexpr auto sign = [](auto a) { return a > 0 ? decltype(a)(1) : a < 0 ? decltype(a)(-1) : a; };
constexpr auto reciprocal = [](double a) { return 1 / a; };
constexpr auto relu = [](double a) { return a <= 0 ? 0 : a; };
// Where e^-a is infinite, e^a / (1 + e^a) is not 0.
constexpr auto sigmoid = [](double a) {
  return a < 0 ? std::exp(a) / (1 + std::exp(a)) : 1 / (1 + std::exp(-a));
};
constexpr auto silu = [](double a) { return a * sigmoid(a); };
constexpr auto normal_cdf = [](double a) { return std::erfc(-a / std::numbers::sqrt2) / 2; };
constexpr auto gelu = [](double a) { return a * normal_cdf(a); };
constexpr auto logical_not = [](auto a) { return a == 0; };
constexpr auto add = [](auto a, auto b) { return plus(a, b); };
constexpr auto sub = [](auto a, auto b) { return plus(a, negative(b)); };
constexpr auto mul = [](auto a, auto b) { return times(a, b); };
constexpr auto div = [](double a, double b) { return a / b; };
constexpr auto pow = [](double a, double b) { return std::pow(a, b); };
constexpr auto maximum = [](auto a, auto b) { return a > b || a != a ? a : b; };
constexpr auto minimum = [](auto a, auto b) { return a < b || a != a ? a : b; };
constexpr auto eq = [](auto a, auto b) { return a == b; };
constexpr auto ne = [](auto a, auto b) { return a != b; };
constexpr auto lt = [](auto a, auto b) { return a < b; };
constexpr auto le = [](auto a, auto b) { return a <= b; };
constexpr auto gt = [](auto a, auto b) { return a > b; };
constexpr auto ge = [](auto a, auto b) { return a >= b; };
constexpr auto logical_and = [](auto a, auto b) { return a != 0 && b != 0; };
constexpr auto logical_or = [](auto a, auto b) { return a != 0 || b != 0; };
constexpr auto where = [](auto a, auto b, auto c) { return a != 0 ? b : c; };
constexpr auto clamp = [](auto a, auto low, auto high) {
  const auto raised = a < low ? low : a;
  return raised > high ? high : raised;
};
constexpr auto fma = [](auto a, auto b, auto c) { return plus(a, times(b, c)); };
constexpr auto mul_silu = [](double a, double b) { return a * silu(b); };

// For backward.
constexpr auto square_difference = [](double a, double b) { return (a - b) * (a - b); };
constexpr auto exp_difference = [](double a, double b) {
  return a == -infinity ? 0 : std::exp(a - b);
};
constexpr auto mul_exp_difference = [](double a, double b, double c) {
  return b == -infinity ? 0 : a * std::exp(b - c);
};
constexpr auto mul_neg = [](double a, double b) { return -a * b; };
constexpr auto sqrt_grad = [](double d, double o) { return d / (2 * o); };
constexpr auto rsqrt_grad = [](double d, double o) { return -d * o * o * o / 2; };
constexpr auto tanh_grad = [](double d, double o) { return d * (1 - o) * (1 + o); };
constexpr auto sin_grad = [](double d, double x) { return d * std::cos(x); };
constexpr auto cos_grad = [](double d, double x) { return -d * std::sin(x); };
constexpr auto abs_grad = [](double d, double x) { return x > 0 ? d : x < 0 ? -d : x; };
constexpr auto relu_grad = [](double d, double x) { return x <= 0 ? 0 : d; };
constexpr auto sigmoid_grad = [](double d, double x) { return d * sigmoid(x) * sigmoid(-x); };
constexpr auto silu_grad = [](double d, double x) {
  return d * sigmoid(x) * (1 + x * sigmoid(-x));
};
constexpr auto normal_cdf_grad = [](double d, double x) {
  return d * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
};
constexpr auto gelu_grad = [](double d, double x) {
  return d * (normal_cdf(x) + x * normal_cdf_grad(1, x));
};
constexpr auto mul_silu_grad = [](double d, double x, double y) { return d * y * silu_grad(1, x); };
constexpr auto div_grad_b = [](double d, double o, double y) { return -d * o / y; };
constexpr auto pow_grad_a = [](double d, double x, double y) {
  return y == 0 ? 0 : d * y * std::pow(x, y - 1);
};
constexpr auto pow_grad_b = [](double d, double x, double o) {
  return x == 0 && std::isfinite(o) ? 0 : d * o * std::log(x);
};
constexpr auto where_first = [](double a, double d) { return a != 0 ? d : 0; };
constexpr auto where_second = [](double a, double d) { return a != 0 ? 0 : d; };
/// What x gets of d where it may win against y: all, or half if they are alike. NaN wins.
constexpr auto share = [](double d, bool wins, double x, double y) {
  const bool x_is = !std::isnan(x), y_is = !std::isnan(y);  // numbers
  return wins || (!x_is && y_is) ? d : x == y || (!x_is && !y_is) ? d / 2 : 0;
};
constexpr auto maximum_grad = [](double d, double x, double y) { return share(d, x > y, x, y); };
constexpr auto minimum_grad = [](double d, double x, double y) { return share(d, x < y, x, y); };
constexpr auto clamp_grad_low = [](double d, double x, double low) { return x < low ? 0 : d; };
constexpr auto clamp_grad_high = [](double d, double x, double high) { return x > high ? 0 : d; };
constexpr auto mul_difference = [](double a, double b, double c) { return a * (b - c); };
constexpr auto mul_mul = [](auto a, auto b, auto c) { return times(times(a, b), c); };
constexpr auto mul_div = [](double a, double b, double c) { return a * b / c; };

}  // namespace formula

/// An operand over a shape, in the type that the function is computed in: beside f32, other numbers
/// are rounded to it.
template <class T>
Numbers<T> values_of(const Operand& in, const Shape& over, DType type) {
  const Numbers<T> values = in.is_scalar ? Numbers<T>::Constant(numel(over), scalar_as<T>(in.value))
                                         : read_as<T>(broadcast(in.view, over));
  if (type == f32) return values.template cast<float>().template cast<T>();
  return values;
}

template <class T>
Numbers<T> evaluate(Pointwise f, const Operands& in, const Shape& over, DType type) {
  const Numbers<T> a = values_of<T>(in[0], over, type), b = values_of<T>(in[1], over, type),
                   c = values_of<T>(in[2], over, type);
  Numbers<T> o(a.size());
  const auto map = [&]<class F>(F function) {
    for (std::int64_t i = 0; i < o.size(); ++i) {
      if constexpr (std::is_invocable_v<F, T>) o[i] = static_cast<T>(function(a[i]));
      if constexpr (std::is_invocable_v<F, T, T>) o[i] = static_cast<T>(function(a[i], b[i]));
      if constexpr (std::is_invocable_v<F, T, T, T>) o[i] = function(a[i], b[i], c[i]);
    }
  };
  switch (f) {
#define QUIPU_POINTWISE(name, types, sums)                                                     \
  case Pointwise::name:                                                                        \
    if constexpr (std::is_same_v<T, double> || traits_of(Pointwise::name).for_whole_numbers) { \
      map(formula::name);                                                                      \
    }                                                                                          \
    break;
#include "quipu/ops/pointwise/functions.def"
#undef QUIPU_POINTWISE
  }
  return o;
}

void pointwise(Target o, Pointwise f, const Operands& in) {
  const DType type = pointwise_type(o.view, f, in);
  with_numbers_of(type, [&]<class T>(T) { store(o, evaluate<T>(f, in, o.view.shape, type)); });
}

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  const DType type = pointwise_type(in);
  with_numbers_of(type, [&]<class T>(T) {
    const Numbers<T> sums = summed_to(o.view.shape, evaluate<T>(f, in, over, type), over);
    if (scale == 1) return store(o, sums);
    store(o, (scale * sums.template cast<double>()).eval());
  });
}

}  // namespace
}  // namespace reference

void register_reference_pointwise() {
  pointwise_kernel.provide(Variant::reference, reference::pointwise);
  pointwise_sum_kernel.provide(Variant::reference, reference::pointwise_sum);
}

}  // namespace quipu::detail
