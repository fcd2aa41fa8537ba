#pragma once
// What reductions share: which dimensions go, and views that keep them with size 1.
// Internal to ops/.
#include <array>

#include "quipu/core/tensor.h"

namespace quipu::detail {

struct Reduction {
  Reduction(const Shape& shape, const Axes& axes, bool keepdim);

  std::array<bool, max_dims> reduced;
  Shape kept;          // the reduced dimensions have size 1
  Shape result;        // as asked for
  std::int64_t count;  // entries that are reduced to one

  /// A tensor of shape `kept` or `result`, seen with shape `kept`.
  View keep(const Tensor& t) const;
};

}  // namespace quipu::detail
