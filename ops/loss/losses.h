#pragma once
// Losses that are made of smaller operators. As for cross_entropy and mse_loss, the result is f32,
// or f64 for f64, the mean of nothing is 0, and what is kept is what the smaller operators keep.
#include <optional>

#include "quipu/core/tensor.h"
#include "quipu/ops/loss/loss_reduction.h"

namespace quipu {

/// |x - y|; x and y have one shape and one floating type, as in the others below.
Tensor l1_loss(const Tensor& x, const Tensor& y, LossReduction reduction = LossReduction::mean);
/// (x - y)^2 / 2 up to a distance of delta, and delta (|x - y| - delta / 2) beyond (Huber 1964,
/// doi:10.1214/aoms/1177703732).
Tensor huber_loss(const Tensor& x, const Tensor& y, double delta = 1,
                  LossReduction reduction = LossReduction::mean);
/// -y log s(x) - (1 - y) log(1 - s(x)) with s = sigmoid, for probabilities y. Nothing overflows,
/// and no digit is lost where the sigmoid is near 0 or 1.
Tensor bce_with_logits(const Tensor& x, const Tensor& y,
                       LossReduction reduction = LossReduction::mean);
/// p (log p - x) for log-probabilities x and probabilities p: the Kullback-Leibler divergence if it
/// is summed over the classes. What has probability 0 counts nothing. The mean is over all entries.
Tensor kl_div(const Tensor& x, const Tensor& p, LossReduction reduction = LossReduction::mean);

/// Which rows count, and how much.
struct NllOptions {
  std::optional<std::int64_t> ignore_index = -100;  // rows with this target do not count
  Tensor weights = {};                              // of the classes, (c,); none: all count 1
  LossReduction reduction = LossReduction::mean;    // divides by the weights of the rows that count
};
/// -x[target] for log-probabilities x (..., c) and targets (...) of i64 or i32: what cross_entropy
/// is after log_softmax.
Tensor nll_loss(const Tensor& x, const Tensor& targets, const NllOptions& options = {});

}  // namespace quipu
