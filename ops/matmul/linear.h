#pragma once
// The linear layer.
#include "quipu/core/tensor.h"

namespace quipu {

/// x weight^T + bias: x (..., in), weight (out, in), bias (out,) or none -> (..., out). One
/// floating type; sums are f32 (f64 for f64), the bias among them, and rounded once. Keeps x if
/// weight gets a gradient and weight if x gets one; the bias needs neither.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

namespace detail {

/// The same from smaller operators: the oracle of the tests and the baseline of the benchmark.
Tensor linear_composed(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// Without any tape: d_x (=|+=) d_o weight, d_weight (=|+=) d_o^T x, d_bias (=|+=) the sum of the
/// rows of d_o, where each is wanted.
void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                     const Grad& d_weight, const Grad& d_bias);

}  // namespace detail
}  // namespace quipu
