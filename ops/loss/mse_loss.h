#pragma once
// The mean square error.
#include "quipu/core/tensor.h"
#include "quipu/ops/loss/loss_reduction.h"

namespace quipu {

/// (x - y)^2, its mean or its sum; x and y have one shape and one floating type. The loss is f32,
/// or f64 for f64, as for cross_entropy; the mean of nothing is 0. Keeps x and y.
Tensor mse_loss(const Tensor& x, const Tensor& y, LossReduction reduction = LossReduction::mean);

namespace detail {

/// Without any tape: each gradient that is wanted (=|+=), where d_o is that of the loss.
void mse_loss_backward(const Tensor& x, const Tensor& y, const Tensor& d_o, const Grad& d_x,
                       const Grad& d_y, LossReduction reduction = LossReduction::mean);

}  // namespace detail
}  // namespace quipu
