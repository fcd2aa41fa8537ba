#pragma once
// What a back end provides for softmax; the other activations are pointwise functions. `parts` is
// workspace, softmax_workspace() of two quantities in the compute type, and not defined where that
// has no elements. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/query.h"

namespace quipu::detail {

/// The shape, in the compute type, of some quantities of each part that a back end cuts each line
/// into, (parts, quantities, lines); no elements where it cuts none.
inline constinit Query<Shape(std::int64_t lines, std::int64_t length, std::int64_t quantities)>
    softmax_workspace{"softmax_workspace"};

/// o = softmax of x along an axis, of the type of x or of its compute type. One shape, any strides.
inline constinit Kernel<void(View x, View o, View parts, int axis)> softmax_forward_kernel{
    "softmax_forward", "x o parts* axis"};
/// d_x (=|+=) o (d_o - mean of d_o along the axis), the mean by weights o / sum of o, which makes
/// up for the rounding of o
inline constinit Kernel<void(View o, View d_o, Grad d_x, View parts, int axis)>
    softmax_backward_kernel{"softmax_backward", "o d_o d_x parts* axis"};

}  // namespace quipu::detail
