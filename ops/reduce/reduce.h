#pragma once
// Reductions over some dimensions (`Axes`; none named means all). `keepdim` leaves the reduced
// dimensions in place with size 1.
#include <cstdint>

#include "quipu/core/tensor.h"

namespace quipu {

/// Whole numbers and bools give i64. Keeps nothing for backward.
Tensor sum(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// Floating types only, as for var, norm and logsumexp. Keeps nothing.
Tensor mean(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// The product of entries. Whole numbers and bools give i64. Keeps x.
Tensor prod(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// Mean square distance from the mean: the sum of squares divided by n - correction. Keeps x and
/// the mean.
Tensor var(const Tensor& x, const Axes& axes = {}, int correction = 1, bool keepdim = false);
/// The square root of var, with gradient 0 where it is 0. Keeps x, the mean and the result.
Tensor stddev(const Tensor& x, const Axes& axes = {}, int correction = 1, bool keepdim = false);
/// (sum of |x|^p)^(1/p); the largest or smallest |x| if p is infinity or -infinity, how many are
/// not 0 if it is 0. The gradient is 0 where the norm is. Keeps x and the result.
Tensor norm(const Tensor& x, double p = 2, const Axes& axes = {}, bool keepdim = false);
/// Whether some entry is not 0 (bool); false of no entries. `all` (core/tensor.h) is its
/// counterpart.
Tensor any(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// log(sum(exp(x))) without overflow. Keeps x, the result and as many numbers again, by which
/// gradients do not depend on how the result was rounded.
Tensor logsumexp(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// log(softmax(x)) along `dim`, with all its digits where a probability is near 1, too. Keeps x and
/// two numbers for each line.
Tensor log_softmax(const Tensor& x, int dim);

// The largest or smallest entry; NaN wins. All of the gradient goes to the first of them. Keeps its
// index.
Tensor max(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
Tensor min(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
/// Which of equal entries is meant.
enum class Ties : std::uint8_t { first, last };
// Where it stands (i64): along the one dimension that is reduced, else in row-major order of those
// that are.
Tensor argmax(const Tensor& x, const Axes& axes = {}, bool keepdim = false,
              Ties ties = Ties::first);
Tensor argmin(const Tensor& x, const Axes& axes = {}, bool keepdim = false,
              Ties ties = Ties::first);

/// Entries and where they stand; both have one shape.
struct Extremes {
  Tensor values;  // as max or min gives them, with their gradient
  Tensor index;   // i64, as argmax or argmin gives it
};
// Both in one pass.
Extremes max_with_index(const Tensor& x, const Axes& axes = {}, bool keepdim = false);
Extremes min_with_index(const Tensor& x, const Axes& axes = {}, bool keepdim = false);

}  // namespace quipu
