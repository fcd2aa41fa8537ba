#pragma once
// Arithmetic, element by element. Shapes broadcast, types promote (core/dtype.h), and either side
// may be a number. Gradients of a broadcast side are summed over what it was repeated along.
#include <optional>

#include "quipu/ops/term.h"

namespace quipu {

Tensor add(const Term& a, const Term& b);
Tensor sub(const Term& a, const Term& b);
/// Keeps each side that the other's gradient needs.
Tensor mul(const Term& a, const Term& b);
/// Floating types only. Keeps b, and the output where b wants a gradient.
Tensor div(const Term& a, const Term& b);
/// a to the power of b. Floating types only. 0 to a negative power is infinity, with slopes of
/// -infinity; the exponent gets no gradient of 0 to any other power.
Tensor pow(const Term& a, const Term& b);
/// NaN wins, and the gradient goes where the value came from; where both are equal or both NaN,
/// each gets half. A number that the tensor's type cannot hold, but that would become an entry, is
/// an error.
Tensor maximum(const Term& a, const Term& b);
Tensor minimum(const Term& a, const Term& b);
Tensor neg(const Tensor& x);
/// Entries below `low` become `low`, above `high` become `high`; the gradient passes where x lies
/// within the bounds, borders included, and where it is NaN. At least one bound must be given.
Tensor clamp(const Tensor& x, const std::optional<Scalar>& low,
             const std::optional<Scalar>& high = {});

inline Tensor operator+(const Term& a, const Term& b) {
  return add(a, b);
}
inline Tensor operator-(const Term& a, const Term& b) {
  return sub(a, b);
}
inline Tensor operator*(const Term& a, const Term& b) {
  return mul(a, b);
}
inline Tensor operator/(const Term& a, const Term& b) {
  return div(a, b);
}
inline Tensor operator-(const Tensor& x) {
  return neg(x);
}

}  // namespace quipu
