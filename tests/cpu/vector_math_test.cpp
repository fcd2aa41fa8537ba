#include "quipu/cpu/simd/vector_math.h"

#include "quipu/cpu/simd/vector_pow.h"
#include "ulps.h"

using namespace quipu::testing;

TEST_CASE_TEMPLATE("vector math: exp within 1 unit in the last place", T, float, double) {
  const auto f = [](T x) { return math::exp(x); };
  const auto reference = [](Reference x) { return std::exp(x); };
  check_within(1.0, any_bits<T>(), f, reference);
  check_within(1.0, spread<T>(-1, 1), f, reference);
  check_within(1.0, spread<T>(single<T> ? -88 : -708, single<T> ? 89 : 710), f, reference);
  check_within(1.0, spread<T>(single<T> ? -104.5 : -746, single<T> ? -87 : -708), f,
               reference);  // subnormal
}

TEST_CASE_TEMPLATE("vector math: log within 1 unit in the last place", T, float, double) {
  const auto f = [](T x) { return math::log(x); };
  const auto reference = [](Reference x) { return std::log(x); };
  check_within(1.0, any_bits<T>(), f, reference);
  check_within(1.0, spread<T>(0.3, 3), f, reference);
  check_within(1.0, spread<T>(0.999, 1.001), f, reference);
}

TEST_CASE_TEMPLATE("vector math: tanh and sigmoid within 2 units in the last place", T, float,
                   double) {
  const auto tanh = [](T x) { return math::tanh(x); };
  const auto tanh_reference = [](Reference x) { return std::tanh(x); };
  check_within(2.0, any_bits<T>(), tanh, tanh_reference);
  check_within(2.0, spread<T>(-1, 1), tanh, tanh_reference);
  check_within(2.0, spread<T>(-25, 25), tanh, tanh_reference);
  const auto sigmoid = [](T x) { return math::sigmoid(x); };
  const auto sigmoid_reference = [](Reference x) { return 1 / (1 + std::exp(-x)); };
  check_within(2.0, any_bits<T>(), sigmoid, sigmoid_reference);
  check_within(2.0, spread<T>(-10, 10), sigmoid, sigmoid_reference);
  check_within(2.0, spread<T>(single<T> ? -105 : -747, 40), sigmoid, sigmoid_reference);
}

TEST_CASE_TEMPLATE("vector math: sin and cos within 2 units in the last place", T, float, double) {
  const auto sin = [](T x) { return math::sincos(x).sin; };
  const auto cos = [](T x) { return math::sincos(x).cos; };
  const auto sin_reference = [](Reference x) { return std::sin(x); };
  const auto cos_reference = [](Reference x) { return std::cos(x); };
  std::vector<T> near_zeros;  // where the result is small and the reduction must be exact
  for (int k = 1; k < 660000; k += 33) {
    const T x = static_cast<T>(k * 1.57079632679489661923L);
    near_zeros.insert(near_zeros.end(),
                      {x, std::nextafter(x, T(0)), -std::nextafter(x, T(0x1p30))});
  }
  for (const std::vector<T>& x : {spread<T>(-1, 1), spread<T>(-100, 100),
                                  spread<T>(-math::sincos_limit, math::sincos_limit), near_zeros}) {
    check_within(2.0, x, sin, sin_reference);
    check_within(2.0, x, cos, cos_reference);
  }
  CHECK(std::signbit(math::sincos(T(-0.0)).sin));
}

TEST_CASE_TEMPLATE("vector math: arguments beyond the reduction go to the standard library", T,
                   float, double) {
  const std::vector<T> x = any_bits<T>();
  check_within(
      2.0, x, [](T v) { return math::sincos_anywhere(v).sin; },
      [](Reference v) { return std::sin(v); });
  const T within[] = {T(math::sincos_limit), T(-1), std::numeric_limits<T>::quiet_NaN()};
  const T beyond[] = {T(1), T(2) * T(math::sincos_limit)};
  const T infinite[] = {-std::numeric_limits<T>::infinity()};
  CHECK(math::within_sincos_limit(within, 3));
  CHECK(!math::within_sincos_limit(beyond, 2));
  CHECK(!math::within_sincos_limit(infinite, 1));
}

TEST_CASE_TEMPLATE("vector math: pow within 1.5 units in the last place", T, float, double) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  double worst = 0;
  for (int i = 0; i < samples; ++i) {
    const T a = static_cast<T>(std::exp(normal(random)));
    const T b = static_cast<T>(normal(random) * (i % 2 == 0 ? 2 : single<T> ? 30 : 250));
    const double error = error_in_ulp(
        math::pow(a, b), std::pow(static_cast<Reference>(a), static_cast<Reference>(b)));
    if (!(error <= worst)) worst = error;
  }
  CHECK(worst <= 1.5);
}

TEST_CASE_TEMPLATE("vector math: pow agrees with the standard library on special values", T, float,
                   double) {
  using Limits = std::numeric_limits<T>;
  const T last_odd = T(2) / Limits::epsilon() - T(1);  // the next one is even, and all beyond
  std::vector<T> values = {0,
                           T(0.5),
                           1,
                           T(1.5),
                           2,
                           3,
                           T(0.1),
                           Limits::infinity(),
                           Limits::denorm_min(),
                           100,
                           1001,
                           Limits::max(),
                           last_odd,
                           last_odd + T(1),
                           last_odd / T(2)};
  for (std::size_t i = values.size(); i-- > 0;) values.push_back(-values[i]);
  values.push_back(Limits::quiet_NaN());
  for (T a : values) {
    for (T b : values) {
      CAPTURE(a);
      CAPTURE(b);
      const T wanted = std::pow(a, b), got = math::pow(a, b);
      CHECK(error_in_ulp(got, static_cast<Reference>(wanted)) <= 2);
      CHECK(std::signbit(got) == (std::isnan(wanted) ? std::signbit(got) : std::signbit(wanted)));
    }
  }
}
