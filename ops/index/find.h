#pragma once
// Where entries are that hold, or equal something. The shapes of some results depend on values, so
// they wait for the device, and on meta they are an error.
#include "quipu/core/tensor.h"

namespace quipu {

/// The index of each entry that is not 0, row by row in row-major order: i64 (count, dimensions).
Tensor nonzero(const Tensor& x);
/// The entries of x for which `mask` (bool, of the shape of x) holds, in row-major order: (count).
/// The same as x(mask). Gradients flow to them.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// How often each whole number from 0 on stands in x (i64 or i32), or the sum of its `weights`; at
/// least `least` entries.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, std::int64_t least = 0);

/// What `unique` finds of n entries.
struct Unique {
  Tensor values;   // each once, in rising order; NaN last
  Tensor inverse;  // i64, of the shape of x: where each entry stands among them
  Tensor counts;   // i64: how many entries each has
};
/// The different entries of x. No gradient.
Unique unique(const Tensor& x);

/// Where values would be put into `sorted`, whose lines along the last dimension rise: i64 of the
/// shape of `values`. In front of equal entries, or behind them if `right`. `sorted` has one
/// dimension, or all but the last are those of `values`.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right = false);

}  // namespace quipu
