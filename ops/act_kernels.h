#pragma once
// What a back end provides for softmax; the other activations are pointwise functions. `parts` is
// workspace, softmax_workspace() of two quantities in the compute type, and not defined where that
// has no elements.
#include "quipu/core/dispatch.h"
#include "quipu/ops/softmax_kernels.h"

namespace quipu {

/// o = softmax of x along an axis. One shape, any strides.
inline constinit Kernel<void(View x, View o, View parts, int axis)> softmax_forward{
    "softmax_forward"};
/// d_x (=|+=) o (d_o - mean of d_o along the axis), the mean by weights o / sum of o, which makes
/// up for the rounding of o
inline constinit Kernel<void(View o, View d_o, Grad d_x, View parts, int axis)> softmax_backward{
    "softmax_backward"};

}  // namespace quipu
