#include "quipu/cpu/simd/vector_functions.h"

#include <string>

#include "ulps.h"

using namespace quipu::testing;

namespace {

struct Function {
  const char* name;
  Reference (*exact)(Reference);
  double low, high;  // where most arguments lie
};

/// Beside long double: any bits, and numbers of the usual range, near 0 and near 1.
template <class T, class F>
void check_function(const Function& wanted, F f) {
  CAPTURE(std::string(wanted.name));
  for (const std::vector<T>& x : {any_bits<T>(), spread<T>(wanted.low, wanted.high),
                                  spread<T>(-0.01, 0.01), spread<T>(0.98, 1.02)}) {
    check_within(3.0, x, f, wanted.exact);
  }
}

}  // namespace

#define CHECK_FUNCTION(name, low, high)                                           \
  check_function<T>({#name, [](Reference x) { return std::name(x); }, low, high}, \
                    [](T x) { return math::name(x); })

TEST_CASE_TEMPLATE("vector functions: within 3 units in the last place", T, float, double) {
  CHECK_FUNCTION(expm1, single<T> ? -20 : -50, single<T> ? 89 : 710);
  CHECK_FUNCTION(log1p, -0.9, 10);
  CHECK_FUNCTION(erf, -4, 4);
  CHECK_FUNCTION(asin, -1, 1);
  CHECK_FUNCTION(acos, -1, 1);
  CHECK_FUNCTION(atan, -5, 5);
  CHECK_FUNCTION(sinh, -3, 3);
  CHECK_FUNCTION(cosh, -3, 3);
  CHECK_FUNCTION(sinh, single<T> ? 80 : 700, single<T> ? 90 : 711);
  CHECK_FUNCTION(asinh, -20, 20);
  CHECK_FUNCTION(acosh, 1, 40);
  CHECK_FUNCTION(atanh, -1, 1);
}

TEST_CASE_TEMPLATE("vector functions: atan2 within 3 units in the last place", T, float, double) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values = {0,
                           T(0.4),
                           T(0.5),
                           1,
                           3,
                           Limits::denorm_min(),
                           Limits::min(),
                           Limits::max(),
                           Limits::max() / T(3),
                           Limits::infinity(),
                           Limits::quiet_NaN()};
  const std::vector<T> drawn = any_bits<T>(), usual = spread<T>(-3, 3);
  values.insert(values.end(), drawn.begin(), drawn.begin() + 100);
  values.insert(values.end(), usual.begin(), usual.begin() + 100);
  for (std::size_t i = values.size(); i-- > 0;) values.push_back(-values[i]);
  double worst = 0;
  for (T y : values) {
    for (T x : values) {
      const Reference wanted = std::atan2(static_cast<Reference>(y), static_cast<Reference>(x));
      const T got = math::atan2(y, x);
      const double error = error_in_ulp(got, wanted);
      if (!(error <= worst)) {
        worst = error;
        CAPTURE(y);
        CAPTURE(x);
        CHECK(worst <= 3);
      }
      if (!std::isnan(wanted)) CHECK(std::signbit(got) == std::signbit(wanted));
    }
  }
}

TEST_CASE_TEMPLATE("vector functions: activations", T, float, double) {
  check_function<T>(
      {"softplus",
       [](Reference x) { return std::max(x, Reference{0}) + std::log1p(std::exp(-std::abs(x))); },
       -20, 20},
      [](T x) { return x != x ? x : math::softplus(x); });
  const auto mish = [](Reference x) { return x * std::tanh(std::log1p(std::exp(x))); };
  check_within(
      6.0, spread<T>(-20, 40), [](T x) { return math::mish(x); }, mish);
  // Its exponential multiplies the rounding of an argument of up to 3.
  const auto gelu = [](Reference x) {
    const Reference u =
        std::sqrt(Reference{2} / std::acos(Reference{-1})) * (x + Reference{0.044715L} * x * x * x);
    return x / (1 + std::exp(-2 * u));
  };
  check_within(
      8.0, spread<T>(-1.5, 10), [](T x) { return math::gelu_tanh(x); }, gelu);
  // Slopes beside differences of the functions.
  for (const T x : spread<T>(-12, 12)) {
    const Reference h = 1e-5L, at = static_cast<Reference>(x);
    const auto slope = [&](auto f) {
      return static_cast<double>((f(at + h) - f(at - h)) / (2 * h));
    };
    const double bound = 1e-9 + 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
    CHECK(std::abs(static_cast<double>(math::mish_slope(x)) - slope(mish)) <= bound);
    CHECK(std::abs(static_cast<double>(math::gelu_tanh_slope(x)) - slope(gelu)) <= bound);
  }
}
