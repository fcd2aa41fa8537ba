#pragma once
// What reductions share: which dimensions go, and views that keep them with size 1.
// Internal to ops/.
#include <array>

#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail {

struct Reduction {
  Reduction(const Shape& shape, const Axes& axes, bool keepdim);

  std::array<bool, max_dims> reduced;
  Shape whole;         // as it was
  Shape kept;          // the reduced dimensions have size 1
  Shape result;        // as asked for
  std::int64_t count;  // entries that are reduced to one

  /// Dimensions in the order that puts the reduced ones last.
  Dims reduced_last() const;
  /// A tensor of shape `kept` or `result`, seen with shape `kept`.
  View keep(const Tensor& t) const;
};

/// o = scale * sum of f(in) over the shape of x, where a sum of nothing is 0.
void sum_into(const Tensor& o, Pointwise f, const Operands& in, const Tensor& x,
              const Reduction& over, double scale);

/// x with the reduced dimensions behind the others, dense, as (kept, reduced); a copy in workspace
/// where it does not lie so.
Tensor with_reduced_last(const Tensor& x, const Reduction& over);

/// The type of a sum or product: that of x, i64 for whole numbers and bools.
DType sum_dtype(DType t);

}  // namespace quipu::detail
