#include "quipu/core/dispatch/overlap.h"

#include <algorithm>

namespace quipu::detail {
namespace {

/// Distances between an element of a and one of b, from a dimension on: from `low` to `high`.
struct Reach {
  Reach(const View& a, const View& b, int from) {
    const auto add = [&](const View& v, int sign) {
      for (int d = from; d < v.dim(); ++d) {
        const std::int64_t last = sign * (v.size(d) - 1) * v.stride(d);
        (last < 0 ? low : high) += last;
      }
    };
    add(a, 1);
    add(b, -1);
  }
  std::int64_t low = 0, high = 0;
};

std::int64_t floor_of(std::int64_t n, std::int64_t d) {  // d > 0
  return n >= 0 ? n / d : -((-n + d - 1) / d);
}

/// Whether elements of a and b can be `distance` apart. Strides are the same in the dimensions
/// before `common`; what lies behind them counts as one range.
bool reachable(const View& a, const View& b, int dim, int common, std::int64_t distance,
               int& budget) {
  const Reach here(a, b, dim);
  if (distance < here.low || distance > here.high) return false;
  if (dim == common) return true;
  const std::int64_t stride = a.stride(dim);
  if (stride == 0) return reachable(a, b, dim + 1, common, distance, budget);
  // Of the index differences i only those count that the dimensions behind can make up for.
  const Reach rest(a, b, dim + 1);
  const std::int64_t step = stride < 0 ? -stride : stride;
  std::int64_t first = -floor_of(rest.high - distance, step),
               last = floor_of(distance - rest.low, step);
  if (stride < 0) {
    first = -floor_of(distance - rest.low, step);
    last = floor_of(rest.high - distance, step);
  }
  first = std::max(first, -(b.size(dim) - 1));
  last = std::min(last, a.size(dim) - 1);
  for (std::int64_t i = first; i <= last; ++i) {
    if (--budget < 0) return true;
    if (reachable(a, b, dim + 1, common, distance - i * stride, budget)) return true;
  }
  return false;
}

}  // namespace

bool may_overlap(const View& a, const View& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  if (a.dtype != b.dtype) return true;
  const std::int64_t bytes = static_cast<char*>(b.data) - static_cast<char*>(a.data);
  int common = 0;
  while (common < std::min(a.dim(), b.dim()) && a.stride(common) == b.stride(common)) ++common;
  int budget = 4096;
  return reachable(a, b, 0, common, bytes / static_cast<std::int64_t>(size_of(a.dtype)), budget);
}

}  // namespace quipu::detail
