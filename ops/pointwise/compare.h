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
Tensor logical_xor(const detail::Term& a, const detail::Term& b);
Tensor logical_not(const Tensor& x);
// Whole numbers are always finite.
Tensor isnan(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isfinite(const Tensor& x);

// Bit by bit, of whole types, which promote; of bool it is logic.
Tensor bitwise_and(const detail::Term& a, const detail::Term& b);
Tensor bitwise_or(const detail::Term& a, const detail::Term& b);
Tensor bitwise_xor(const detail::Term& a, const detail::Term& b);
Tensor bitwise_not(const Tensor& x);
// a 2^b, without the bits that the type does not hold, and a / 2^b rounded down, of whole types; a
// shift by less than 0 or more than 63 leaves no bit but the sign.
Tensor shift_left(const detail::Term& a, const detail::Term& b);
Tensor shift_right(const detail::Term& a, const detail::Term& b);

// The bitwise ones as operators, above all for masks: (x > 0) & (x < 1).
inline Tensor operator&(const detail::Term& a, const detail::Term& b) {
  return bitwise_and(a, b);
}
inline Tensor operator|(const detail::Term& a, const detail::Term& b) {
  return bitwise_or(a, b);
}
inline Tensor operator^(const detail::Term& a, const detail::Term& b) {
  return bitwise_xor(a, b);
}
inline Tensor operator~(const Tensor& x) {
  return bitwise_not(x);
}

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

/// a where `condition` (bool) holds, else b. a and b have one type; of two numbers it is f32 if one
/// is real, else i64, or bool of two truth values. Keeps the condition only.
Tensor where(const Tensor& condition, const detail::Term& a, const detail::Term& b);
/// x with `value` where `mask` (bool, broadcast to the shape of x) holds. Keeps the mask only.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);

}  // namespace quipu
