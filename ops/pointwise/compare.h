#pragma once
// Comparisons, logic and choice, element by element. Shapes broadcast; either side may be a number.
#include "quipu/ops/pointwise/term.h"

namespace quipu {

// The result is bool and has no gradient. NaN compares as unequal to everything.
Tensor eq(const detail::Term& a, const detail::Term& b);
Tensor ne(const detail::Term& a, const detail::Term& b);
Tensor lt(const detail::Term& a, const detail::Term& b);
Tensor le(const detail::Term& a, const detail::Term& b);
Tensor gt(const detail::Term& a, const detail::Term& b);
Tensor ge(const detail::Term& a, const detail::Term& b);
// Anything but 0 counts as true.
Tensor logical_and(const detail::Term& a, const detail::Term& b);
Tensor logical_or(const detail::Term& a, const detail::Term& b);
Tensor logical_not(const Tensor& x);

// lt, le, gt and ge as operators; == and != are only there as eq and ne.
inline Tensor operator<(const detail::Term& a, const detail::Term& b) {
  return lt(a, b);
}
inline Tensor operator<=(const detail::Term& a, const detail::Term& b) {
  return le(a, b);
}
inline Tensor operator>(const detail::Term& a, const detail::Term& b) {
  return gt(a, b);
}
inline Tensor operator>=(const detail::Term& a, const detail::Term& b) {
  return ge(a, b);
}

/// a where `condition` (bool) holds, else b. a and b have one type. Keeps the condition only.
Tensor where(const Tensor& condition, const detail::Term& a, const detail::Term& b);
/// x with `value` where `mask` (bool, broadcast to the shape of x) holds. Keeps the mask only.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);

}  // namespace quipu
