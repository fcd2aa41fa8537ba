#pragma once
// Putting tensors together along a dimension, and taking them apart.
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

/// Side by side along `dim`; all other sizes and the types are equal. Keeps nothing for backward.
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);
/// One above the other along a new dimension; shapes and types are equal.
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);
/// Views of `size` entries each along `dim`; the last may have fewer.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim = 0);
/// Views of the given sizes, which add up to the size of `dim`.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, int dim = 0);

}  // namespace quipu
