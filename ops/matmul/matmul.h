#pragma once
// Matrix products.
#include "quipu/core/tensor.h"

namespace quipu {

/// a (..., m, k), b (..., k, n) -> (..., m, n). Batch dimensions broadcast; a vector a counts as
/// one row, a vector b as one column, and the result lacks that dimension. Floating types only,
/// both the same; sums are f32 (f64 for f64). Transposed operands are read as they lie. Keeps each
/// side that the other's gradient needs.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace quipu
