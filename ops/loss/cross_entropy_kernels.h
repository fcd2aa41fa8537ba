#pragma once
// What a back end provides for cross entropy. logits and their gradient are (..., c), targets are
// (...), i64 or i32, all with any strides. lse is (2, rows): the log-sum-exp of each row and its
// rest (log_sum_kernels.h), contiguous but for the two. losses hold one number a row, scale one
// number; they are contiguous. All of these are of the compute type.
// Internal to ops/ and the back ends.
#include <optional>

#include "quipu/core/dispatch/dispatch.h"

namespace quipu::detail {

struct CrossEntropyTargets {
  std::optional<std::int64_t> ignored;
  double smoothing;

  bool ignores(std::int64_t target) const { return ignored && *ignored == target; }
};

/// Throws for the first target that is neither a class nor ignored; scale = 1 / (rows that count),
/// or 0 where none does. scale may be undefined.
inline constinit Kernel<void(View targets, View scale, std::int64_t classes, CrossEntropyTargets)>
    cross_entropy_targets_kernel{"cross_entropy_targets", "targets scale classes options"};
/// lse = log-sum-exp of each row, losses = its loss, 0 where it is ignored. Either may be
/// undefined.
inline constinit Kernel<void(View logits, View targets, View lse, View losses, CrossEntropyTargets)>
    cross_entropy_rows_kernel{"cross_entropy_rows", "logits targets lse+ losses options"};
/// d_logits (=|+=) d_o scale (softmax - smoothed target), 0 in rows that are ignored. d_o has no
/// dimensions or those of the targets; an undefined scale is 1. d_logits may be the logits
/// themselves.
inline constinit Kernel<void(View logits, View targets, View lse, View scale, View d_o,
                             Grad d_logits, CrossEntropyTargets)>
    cross_entropy_gradient_kernel{"cross_entropy_gradient",
                                  "logits targets lse+ scale d_o d_logits options"};

}  // namespace quipu::detail
