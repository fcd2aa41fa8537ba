#pragma once
// The entries of a tensor in other places, repeated, or with others beside them. Any type; where
// nothing else is said, gradients flow back to where entries came from, and nothing is kept.
#include <utility>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

/// In the opposite order along some dimensions; none named means all.
Tensor flip(const Tensor& x, const Axes& axes = {});
/// Shifted by `shift` places along `dim`, and what goes over the end comes in at the front.
Tensor roll(const Tensor& x, std::int64_t shift, int dim);
/// The whole tensor several times along each dimension; `times` may have more of them than x, in
/// front.
Tensor repeat(const Tensor& x, const Dims& times);
// What lies on and below, or on and above, a diagonal of the two last dimensions; 0 elsewhere.
// `diagonal` is 0 for the main one, and counts upwards.
Tensor tril(const Tensor& x, std::int64_t diagonal = 0);
Tensor triu(const Tensor& x, std::int64_t diagonal = 0);
/// 1 at the index and 0 elsewhere, along a new last dimension of size `classes`; of none if the
/// index is out of range. i64, as the index is.
Tensor one_hot(const Tensor& index, std::int64_t classes);

/// What stands beside the entries: a number, the entries mirrored at the end (which is not
/// repeated), or the last one again and again.
enum class PadMode : std::uint8_t { constant, reflect, edge };
/// How many places are added in front of and behind a dimension.
struct PadWidth {
  std::int64_t before = 0, after = 0;  // negative ones cut off
};
/// x with places added around the last dimensions, as many as `widths` has, in their order.
Tensor pad(const Tensor& x, const std::vector<PadWidth>& widths, PadMode mode = PadMode::constant,
           const Scalar& value = 0);

}  // namespace quipu
