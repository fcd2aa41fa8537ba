#pragma once
// swiglu: silu(gate) * x, the gated unit of feed-forward layers (Shazeer 2020, arXiv:2002.05202).
#include "quipu/core/tensor.h"

namespace quipu {

/// silu(gate) * x, element by element; one shape and one floating type. Keeps both, each only where
/// the other's gradient, or its own, needs it.
Tensor swiglu(const Tensor& gate, const Tensor& x);
namespace detail {

/// The same from smaller operators.
Tensor swiglu_composed(const Tensor& gate, const Tensor& x);
/// Without any tape: both gradients (=|+=); either may be unwanted.
void swiglu_backward(const Tensor& gate, const Tensor& x, const Tensor& d_o, const Grad& d_gate,
                     const Grad& d_x);

}  // namespace detail
}  // namespace quipu
