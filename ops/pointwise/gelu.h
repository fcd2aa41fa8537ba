#pragma once
// gelu: the Gaussian error linear unit (Hendrycks and Gimpel 2016, arXiv:1606.08415).
#include "quipu/core/tensor.h"

namespace quipu {

/// x Phi(x), element by element, where Phi(x) is how much of the normal distribution lies below x:
/// the exact form, not the one with tanh. Accurate far below 0, too. Floating types; keeps x.
Tensor gelu(const Tensor& x);
/// The approximation with tanh, x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which GPT-2 and
/// others were trained with. Keeps x.
Tensor gelu_tanh(const Tensor& x);
namespace detail {

/// The same from smaller operators.
Tensor gelu_composed(const Tensor& x);
/// Without any tape: d_x (=|+=) gradient.
void gelu_backward(const Tensor& x, const Tensor& d_o, const Grad& d_x);

/// Phi(x) = (1 + erf(x / sqrt 2)) / 2. Keeps x.
Tensor normal_cdf(const Tensor& x);

}  // namespace detail
}  // namespace quipu
