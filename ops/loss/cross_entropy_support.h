#pragma once
// What cross_entropy and linear_cross_entropy share around their kernels. Internal to ops/.
#include "quipu/core/tensor.h"
#include "quipu/ops/loss/cross_entropy.h"
#include "quipu/ops/loss/cross_entropy_kernels.h"

namespace quipu::detail {

/// x, logits or what they are computed from, has one row for each target.
void check_cross_entropy(const char* name, const Tensor& x, const Tensor& targets,
                         const CrossEntropyOptions& options);

/// The gradient of the loss has its shape.
void check_loss_gradient(const Tensor& d_o, const Tensor& targets,
                         const CrossEntropyOptions& options);

inline CrossEntropyTargets kernel_options(const CrossEntropyOptions& options) {
  return {options.ignore_index, options.label_smoothing};
}

/// Checks the targets. Gives what each row's loss is multiplied by, in workspace; undefined where
/// that is 1.
Tensor loss_scale(const Tensor& targets, std::int64_t classes, DType dtype,
                  const CrossEntropyOptions& options);

/// The losses of the rows, as reduced; `losses` is in workspace unless nothing is reduced.
Tensor reduced_losses(const Tensor& losses, const Tensor& scale,
                      const CrossEntropyOptions& options);

/// The shape of the log-sum-exps of all rows, and of their rests.
inline Shape log_sums_of(const Tensor& targets) {
  return {2, targets.numel()};
}

/// Room for the losses of the rows.
Tensor room_for_losses(const Tensor& targets, DType dtype, const CrossEntropyOptions& options);

}  // namespace quipu::detail
