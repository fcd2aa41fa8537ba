#pragma once
// Errors of functions of one number in units in the last place, beside long double.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "quipu/cpu/simd/vector_math.h"

namespace quipu::testing {

namespace math = quipu::detail::on_cpu::math;

using Reference = long double;
inline constexpr int samples = 40000;

/// |got - wanted| in units in the last place of T at `wanted`; infinite where one is NaN and the
/// other is not.
template <class T>
double error_in_ulp(T got, Reference wanted) {
  constexpr double wrong = std::numeric_limits<double>::infinity();
  using Limits = std::numeric_limits<T>;
  if (std::isnan(wanted) || std::isnan(got))
    return std::isnan(wanted) && std::isnan(got) ? 0 : wrong;
  const T nearest = static_cast<T>(wanted);
  if (std::isinf(nearest) || std::isinf(got)) {
    // Beside the largest number, rounding up to infinity is an error of one place.
    if (got == nearest) return 0;
    return std::max(std::abs(got), std::abs(nearest)) == Limits::infinity() &&
                   std::min(std::abs(got), std::abs(nearest)) == Limits::max()
               ? 1
               : wrong;
  }
  int exponent = 0;
  std::frexp(wanted, &exponent);
  const Reference ulp =
      std::ldexp(Reference{1}, std::max(exponent, Limits::min_exponent) - Limits::digits);
  return static_cast<double>(std::abs(static_cast<Reference>(got) - wanted) / ulp);
}

/// Numbers in [low, high], evenly spread; then their roots of magnitude: any bits at all.
template <class T>
std::vector<T> spread(double low, double high) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> distribution(low, high);
  std::vector<T> values(samples);
  for (T& v : values) v = static_cast<T>(distribution(random));
  return values;
}
template <class T>
std::vector<T> any_bits() {
  using Limits = std::numeric_limits<T>;
  std::mt19937_64 random(2);
  std::vector<T> values(samples);
  for (T& v : values) v = std::bit_cast<T>(static_cast<typename math::Format<T>::Bits>(random()));
  for (T x : {T(0), T(1), Limits::min(), Limits::denorm_min(), Limits::max(), Limits::infinity()}) {
    values.insert(values.end(), {x, -x});
  }
  values.push_back(Limits::quiet_NaN());
  return values;
}

template <class T, class F, class R>
void check_within(double ulps, const std::vector<T>& inputs, F f, R reference) {
  double worst = 0;
  T worst_input = 0;
  for (T x : inputs) {
    const double error = error_in_ulp(f(x), reference(static_cast<Reference>(x)));
    if (!(error <= worst)) {
      worst = error;
      worst_input = x;
    }
  }
  CAPTURE(worst_input);
  CHECK(worst <= ulps);
}

template <class T>
inline constexpr bool single = sizeof(T) == 4;

}  // namespace quipu::testing
