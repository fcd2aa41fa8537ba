#pragma once
// Indexing by tensors: what `x(...)` does with those among its entries. Internal to ops/.
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::detail {

/// Positions (i64) along a dimension.
struct Picked {
  Tensor positions;
  int dim;
};

/// How many dimensions an index has a say in: one, or those of a mask.
int dims_named(const Tensor& index);
/// Adds what `index` picks from dimension `dim` of a tensor of this shape on; returns how many
/// dimensions that are.
int pick(std::vector<Picked>& picked, const Tensor& index, const Shape& shape, int dim);
/// x at these positions, which broadcast together.
Tensor index_by_tensors(const Tensor& x, const std::vector<Picked>& picked);

}  // namespace quipu::detail
