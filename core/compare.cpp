// Comparison with a tolerance. Everything is written so that a NaN fails it.
#include <cmath>

#include "quipu/core/tensor.h"

namespace quipu {
namespace {

std::string index_text(std::int64_t linear, const Shape& shape) {
  Dims index = Dims::filled(shape.size(), 0);
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = linear % shape[d];
    linear /= shape[d];
  }
  std::string text = "[";
  for (int d = 0; d < index.size(); ++d) text += (d ? ", " : "") + std::to_string(index[d]);
  return text + "]";
}

}  // namespace

Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance) {
  Difference result;
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) {
    result.largest = std::numeric_limits<double>::infinity();
    result.text = detail::concat(a.dtype(), " ", a.shape(), " is compared with ", b.dtype(), " ", b.shape());
    return result;
  }
  const double relative = tolerance.relative.value_or(8 * epsilon_of(a.dtype()));
  const double absolute = tolerance.absolute.value_or(tolerance.relative ? 0 : relative);
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst_excess = -1;
  std::size_t worst = 0, failures = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool both_nan = std::isnan(x[i]) && std::isnan(y[i]);
    const bool same = x[i] == y[i] || (tolerance.equal_nan && both_nan);
    const double distance = same ? 0 : std::abs(x[i] - y[i]);
    // Infinities of one sign are equal, all others are infinitely far apart.
    const double allowed = std::isinf(y[i]) ? 0 : absolute + relative * std::abs(y[i]);
    if (!(distance <= allowed)) ++failures;
    const double excess = same ? 0 : std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance - allowed;
    if (excess > worst_excess || i == 0) {
      worst_excess = excess;
      worst = i;
    }
    if (!same && !(distance <= result.largest)) result.largest = distance;
  }
  result.ok = failures == 0;
  if (!x.empty()) {
    result.text = detail::concat(failures, " of ", x.size(), " entries differ; worst at ",
                                 index_text(static_cast<std::int64_t>(worst), a.shape()), ": ", x[worst], " against ",
                                 y[worst], " (allowed: ", absolute, " + ", relative, " relative)");
  }
  return result;
}

}  // namespace quipu
