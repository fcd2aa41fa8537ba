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
/// a to the power of b. Floating types only.
Tensor pow(const Term& a, const Term& b);
/// NaN wins. Where both are equal, each gets half of the gradient.
Tensor maximum(const Term& a, const Term& b);
Tensor minimum(const Term& a, const Term& b);
Tensor neg(const Tensor& x);
/// Entries below `low` become `low`, above `high` become `high`; the gradient passes where x lies
/// within the bounds, borders included. At least one bound must be given.
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
