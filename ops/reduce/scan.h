#pragma once
// Running sums, products and extremes along a dimension: o_i is that of x_0 to x_i, from the far
// end if `reverse`, without x_i itself if `exclusive`.
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/scan.h"

namespace quipu {

/// Whole numbers and bools give i64. Keeps nothing.
Tensor cumsum(const Tensor& x, int dim, bool reverse = false, bool exclusive = false);
/// Whole numbers and bools give i64. Gradients are right beside zeros, too. Keeps x.
Tensor cumprod(const Tensor& x, int dim, bool reverse = false, bool exclusive = false);
// The largest or smallest entry so far and where the first of them stands (i64); NaN wins. Keeps
// the index.
Extremes cummax(const Tensor& x, int dim, bool reverse = false);
Extremes cummin(const Tensor& x, int dim, bool reverse = false);

}  // namespace quipu
