#pragma once
// linear_cross_entropy: cross entropy of a linear layer's output, whose logits are never in memory
// as a whole; the aim of Wijmans et al. 2024, arXiv:2411.09009, reached by chunks of rows.
#include "quipu/ops/loss/cross_entropy.h"

namespace quipu {

/// cross_entropy(x weight^T + bias, targets): x (..., d), weight (c, d), bias (c) or Tensor().
///
/// The logits exist a few rows at a time, in f32 (f64 for f64) and never rounded to the type of x:
/// about four million of them, or 128 rows if that is more. Backward computes them again and adds
/// each part's products to the gradients; only there is the gradient of the logits rounded to the
/// type of x. Loss, options and errors are those of cross_entropy.
///
/// Keeps x, weight, bias, the targets and two numbers a row, as cross_entropy does. Where rows may
/// be ignored and x gets no gradient of its own, that of the weight takes workspace for a few rows
/// of x.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {}, const Tensor& bias = {});

namespace detail {

/// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
Tensor linear_cross_entropy_composed(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                     const CrossEntropyOptions& options = {},
                                     const Tensor& bias = {});

/// Without any tape: each gradient that is wanted (=|+=), where d_o is that of the loss. The
/// log-sum-exps are computed again.
void linear_cross_entropy_backward(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                   const Tensor& d_o, const Grad& d_x, const Grad& d_weight,
                                   const Grad& d_bias = {}, const CrossEntropyOptions& options = {},
                                   const Tensor& bias = {});

}  // namespace detail
}  // namespace quipu
