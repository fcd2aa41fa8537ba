#pragma once
// What operators at indices ask of their arguments. Internal to ops/.
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// index has as many dimensions as x and is no larger in the others.
void check_index_shape(const Tensor& x, int axis, const Tensor& index);
/// All that scatters ask; returns the axis.
int check_scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

}  // namespace quipu::detail
