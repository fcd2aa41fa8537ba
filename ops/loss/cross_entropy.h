#pragma once
// cross_entropy: softmax and negative log-likelihood of logits against class numbers in one, with
// label smoothing (Szegedy et al. 2015, arXiv:1512.00567).
#include <optional>

#include "quipu/core/tensor.h"
#include "quipu/ops/loss/loss_reduction.h"

namespace quipu {

/// Which rows count, how targets are smoothed, and what becomes of the losses of the rows.
struct CrossEntropyOptions {
  std::optional<std::int64_t> ignore_index = -100;  // rows with this target do not count
  double label_smoothing = 0;  // this share of the weight is spread over all classes
  LossReduction reduction = LossReduction::mean;  // over the rows that count
  Tensor weights = {};  // of the classes, (c,): what each counts in losses and in their mean
};

/// logits (..., c), targets (...) of i64 or i32 -> one number, or (...) where nothing is reduced.
///
/// With s the smoothing, the loss of a row z is logsumexp(z) - (1 - s) z[target] - s mean(z); rows
/// to be ignored have loss 0 and gradient 0. The mean of no rows is 0, so that a batch in which
/// nothing counts changes nothing. A target that is no class is an error.
///
/// The loss is f32, or f64 for f64: bf16 and f16 hold too few digits of it, and a gradient of it
/// that was scaled up for f16 must not overflow. A logit of -infinity is a class that cannot be:
/// probability 0, loss infinity if it is the target. Rows without any class that can be are NaN.
///
/// Targets may also be probabilities, of the shape and type of the logits; the loss of a row is
/// then the sum of p (logsumexp(z) - z), and all rows count. With these and with weights of the
/// classes it is made of log_softmax and smaller operators, which keep more.
///
/// Keeps the logits, the targets and two numbers a row: its log-sum-exp, and the digits that this
/// one lost to rounding.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

namespace detail {

/// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
Tensor cross_entropy_composed(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options = {});

/// Without any tape: d_logits (=|+=) gradient, where d_o is that of the loss.
void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& d_o,
                            const Grad& d_logits, const CrossEntropyOptions& options = {});

}  // namespace detail
}  // namespace quipu
