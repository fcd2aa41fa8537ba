#pragma once
// Reductions over some dimensions (`Axes`; none named means all), and running sums. `keepdim`
// leaves the reduced dimensions in place with size 1.
#include <optional>

#include "quipu/core/tensor.h"

namespace quipu {

/// Whole numbers and bools give i64. Keeps nothing for backward.
Tensor sum(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// Floating types only, as for var and logsumexp. Keeps nothing.
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// Mean square distance from the mean; `unbiased` divides by n - 1. Keeps x and the mean.
Tensor var(const Tensor& x, const Axes& axes = {}, bool unbiased = true, bool keepdim = false);
/// log(sum(exp(x))) without overflow. Keeps x, the result and as many numbers again, by which
/// gradients do not depend on how the result was rounded.
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// log(softmax(x)) along `dim`, with all its digits where a probability is near 1, too. Keeps x and
/// two numbers for each line.
Tensor log_softmax(const Tensor& x, int dim);

// The largest or smallest entry, of the whole tensor or along one dimension; NaN wins. All of the
// gradient goes to the first of them. Keeps its index.
Tensor max(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
Tensor min(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
// Where the first of them stands (i64): along `dim`, or in row-major order of the whole tensor.
Tensor argmax(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);

/// Entries and where they stand; both have the shape that max gives.
struct Extremes {
  Tensor values;  // as max or min gives them, with their gradient
  Tensor index;   // i64, as argmax or argmin gives it
};
// Both in one pass.
Extremes max_with_index(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);
Extremes min_with_index(const Tensor& x, std::optional<int> dim = {}, bool keepdim = false);

/// Running sums along `dim`. Whole numbers and bools give i64. Keeps nothing.
Tensor cumsum(const Tensor& x, int dim);

}  // namespace quipu
