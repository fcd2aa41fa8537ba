#pragma once
// The gated unit of feed-forward layers.
#include "quipu/core/tensor.h"

namespace quipu {

/// silu(gate) * x, element by element; one shape and one floating type. Keeps both, each only where
/// the other's gradient, or its own, needs it.
Tensor swiglu(const Tensor& gate, const Tensor& x);
/// The same from smaller operators.
Tensor swiglu_composed(const Tensor& gate, const Tensor& x);
/// Without any tape: both gradients (=|+=); either may be unwanted.
void swiglu_backward(const Tensor& gate, const Tensor& x, const Tensor& d_o, const Grad& d_gate,
                     const Grad& d_x);

}  // namespace quipu
