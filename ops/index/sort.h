#pragma once
// Entries along a dimension in order.
#include "quipu/core/tensor.h"

namespace quipu {

/// Both have the shape of x.
struct Sorted {
  Tensor values;   // of the type of x
  Tensor indices;  // i64, along the dimension: where each stood
};

/// In rising order along `dim`, or in falling order; equal entries stay in theirs, NaN counts as
/// larger than everything. Gradients flow back to where values stood; keeps the indices.
Sorted sort(const Tensor& x, int dim = -1, bool descending = false);
/// The indices of sort().
Tensor argsort(const Tensor& x, int dim = -1, bool descending = false);

}  // namespace quipu
