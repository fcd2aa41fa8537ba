#pragma once
// Arithmetic, element by element. Shapes broadcast, types promote (core/dtype.h), and either side
// may be a number. Gradients of a broadcast side are summed over what it was repeated along.
#include <optional>

#include "quipu/ops/pointwise/term.h"

namespace quipu {

// a + b and a - b. Nothing is kept for backward.
Tensor add(const detail::Term& a, const detail::Term& b);
Tensor sub(const detail::Term& a, const detail::Term& b);
/// a * b. Keeps each side that the other's gradient needs.
Tensor mul(const detail::Term& a, const detail::Term& b);
/// a / b. Floating types only. Keeps b, and the output where b wants a gradient.
Tensor div(const detail::Term& a, const detail::Term& b);
/// a to the power of b. Floating types only. 0 to a negative power is infinity, with slopes of
/// -infinity; the exponent gets no gradient of 0 to any other power.
Tensor pow(const detail::Term& a, const detail::Term& b);
// NaN wins, and the gradient goes where the value came from; where both are equal or both NaN,
// each gets half. A number that the tensor's type cannot hold, but that would become an entry, is
// an error.
Tensor maximum(const detail::Term& a, const detail::Term& b);
Tensor minimum(const detail::Term& a, const detail::Term& b);
/// a - b floor(a / b), which has the sign of b, as in floor division. Of whole numbers it is 0
/// where b is 0, of others NaN. The gradient takes floor(a / b) for a constant. Keeps both for that
/// of b.
Tensor remainder(const detail::Term& a, const detail::Term& b);
/// The angle of the point (x, y), from -pi to pi. Floating types only. Keeps both.
Tensor atan2(const detail::Term& y, const detail::Term& x);
/// -x, in the type of x. Keeps nothing.
Tensor neg(const Tensor& x);
/// Entries below `low` become `low`, above `high` become `high`; the gradient passes where x lies
/// within the bounds, borders included, and where it is NaN. At least one bound must be given; if
/// `low` lies above `high`, all but NaN becomes `high`.
Tensor clamp(const Tensor& x, const std::optional<Scalar>& low,
             const std::optional<Scalar>& high = {});

// add, sub, mul, div and neg as operators.
inline Tensor operator+(const detail::Term& a, const detail::Term& b) {
  return add(a, b);
}
inline Tensor operator-(const detail::Term& a, const detail::Term& b) {
  return sub(a, b);
}
inline Tensor operator*(const detail::Term& a, const detail::Term& b) {
  return mul(a, b);
}
inline Tensor operator/(const detail::Term& a, const detail::Term& b) {
  return div(a, b);
}
inline Tensor operator-(const Tensor& x) {
  return neg(x);
}

}  // namespace quipu
