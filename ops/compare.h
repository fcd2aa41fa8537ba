#pragma once
// Comparisons, logic and choice, element by element. Shapes broadcast; either side may be a number.
#include "quipu/ops/term.h"

namespace quipu {

// The result is bool and has no gradient. NaN compares as unequal to everything.
Tensor eq(const Term& a, const Term& b);
Tensor ne(const Term& a, const Term& b);
Tensor lt(const Term& a, const Term& b);
Tensor le(const Term& a, const Term& b);
Tensor gt(const Term& a, const Term& b);
Tensor ge(const Term& a, const Term& b);
// Anything but 0 counts as true.
Tensor logical_and(const Term& a, const Term& b);
Tensor logical_or(const Term& a, const Term& b);
Tensor logical_not(const Tensor& x);

inline Tensor operator<(const Term& a, const Term& b) {
  return lt(a, b);
}
inline Tensor operator<=(const Term& a, const Term& b) {
  return le(a, b);
}
inline Tensor operator>(const Term& a, const Term& b) {
  return gt(a, b);
}
inline Tensor operator>=(const Term& a, const Term& b) {
  return ge(a, b);
}

/// a where `condition` (bool) holds, else b. a and b have one type. Keeps the condition only.
Tensor where(const Tensor& condition, const Term& a, const Term& b);
/// x with `value` where `mask` (bool, broadcast to the shape of x) holds. Keeps the mask only.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);

}  // namespace quipu
