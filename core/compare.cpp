// Comparison with a tolerance. Everything is written so that a NaN fails it.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "quipu/core/context.h"
#include "quipu/core/tensor.h"
#include "quipu/core/text.h"

namespace quipu {
using namespace detail;
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// As many digits as tell two neighbours of the type apart.
std::string value_text(double value, DType dtype) {
  return fmt::format("{:.{}g}", value, dtype == f64 ? 17 : dtype == f32 ? 9 : 5);
}
std::string value_text(std::int64_t value, DType) {
  return std::to_string(value);
}

/// Infinities of one sign are equal, all others are infinitely far apart; NaN where a NaN is.
double distance(double x, double y, bool equal_nan) {
  const bool same = x == y || (equal_nan && std::isnan(x) && std::isnan(y));
  return same ? 0 : std::abs(x - y);
}
double distance(std::int64_t x, std::int64_t y, bool) {
  const auto low = static_cast<std::uint64_t>(std::min(x, y));
  return static_cast<double>(static_cast<std::uint64_t>(std::max(x, y)) - low);
}

template <class T>
std::vector<T> values_of(const Tensor& x) {
  std::vector<T> values(static_cast<std::size_t>(x.numel()));
  read_values(x, dtype_of<T>, values.data());
  return values;
}

template <class T>
Difference compare_as(const Tensor& a, const Tensor& b, double relative, double absolute,
                      bool equal_nan) {
  const std::vector<T> x = values_of<T>(a), y = values_of<T>(b);
  Difference result;
  double worst_excess = -infinity;
  std::size_t worst = 0, failures = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double apart = distance(x[i], y[i], equal_nan);
    const double size = std::abs(static_cast<double>(y[i]));
    const double allowed = size < infinity ? absolute + relative * size : 0;
    failures += !(apart <= allowed);
    const double excess = std::isnan(apart) ? infinity : apart - allowed;
    if (i > 0 && excess <= worst_excess) continue;
    worst_excess = excess;
    worst = i;
    result.largest = apart;
  }
  result.ok = failures == 0;
  result.text =
      x.empty() ? "there are no entries"
                : fmt::format(
                      "{} of {} entries differ; worst at {}: {} against {} (allowed: {:g} + {:g} "
                      "relative)",
                      failures, x.size(), index_text(static_cast<std::int64_t>(worst), a.shape()),
                      value_text(x[worst], a.dtype()), value_text(y[worst], a.dtype()), absolute,
                      relative);
  return result;
}

}  // namespace

Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance) {
  const OpScope op("compare");
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    return {false, infinity,
            detail::concat(a.dtype(), a.shape(), " is compared with ", b.dtype(), b.shape())};
  }
  const double relative = tolerance.relative.value_or(8 * epsilon_of(a.dtype()));
  const double absolute = tolerance.absolute.value_or(relative);
  const auto as = is_floating(a.dtype()) ? compare_as<double> : compare_as<std::int64_t>;
  return as(a, b, relative, absolute, tolerance.equal_nan);
}

}  // namespace quipu
