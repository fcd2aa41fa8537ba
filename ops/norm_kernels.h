#pragma once
// What a back end provides for normalisation. x, o and their gradients are seen as (outer, groups,
// channels, inner) and are contiguous; a row is all of one group. weight, bias and their gradients
// are (groups, channels). Statistics are (outer, groups), contiguous, of the compute type.
// Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/dispatch/query.h"

namespace quipu::detail {

/// inverse = 1 / sqrt(mean of (x - mean)^2 + eps), where mean is 0 unless `centered`;
/// o = (x - mean) inverse weight + bias. Of o, weight, bias and the statistics, any may be
/// undefined.
inline constinit Kernel<void(View x, View weight, View bias, View o, View mean, View inverse,
                             bool centered, double eps)>
    norm_forward_kernel{"norm_forward", "x weight bias o mean inverse centered eps"};

/// How many partial sums of the gradients of weight and bias there are, for `outer` rows of each
/// group, of so many entries.
inline constinit Query<std::int64_t(std::int64_t outer, std::int64_t length)> norm_backward_parts{
    "norm_backward_parts"};

/// The gradients of norm_forward, each of which may be unwanted; `mean` is undefined where it was
/// not subtracted. `parts` is (norm_backward_parts, wanted of weight and bias, groups, channels) of
/// the compute type, undefined when neither is wanted.
inline constinit Kernel<void(View x, View weight, View d_o, View mean, View inverse, Grad d_x,
                             Grad d_weight, Grad d_bias, View parts)>
    norm_backward_kernel{"norm_backward", "x weight d_o mean inverse d_x d_weight d_bias parts*"};

}  // namespace quipu::detail
