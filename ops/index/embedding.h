#pragma once
// embedding: rows of a table, picked by index.
#include "quipu/core/tensor.h"

namespace quipu {

/// weight (v, d), indices (...) of i64 or i32 -> (..., d): row indices[...] of the table. An index
/// out of range is an error. Backward adds rows in the order of the indices: same bits always.
/// Keeps the indices.
Tensor embedding(const Tensor& weight, const Tensor& indices);

namespace detail {

/// Without any tape: d_weight (=|+=) gradient.
void embedding_backward(const Tensor& indices, const Tensor& d_o, const Grad& d_weight);

}  // namespace detail
}  // namespace quipu
