#pragma once
// What a back end provides for softmax; the other activations are pointwise functions.
#include "quipu/core/dispatch.h"

namespace quipu {

/// o = softmax of x along an axis. One shape, any strides.
inline constinit Kernel<void(View x, View o, int axis)> softmax_forward{"softmax_forward"};
/// d_x (=|+=) o (d_o - sum of o d_o along the axis)
inline constinit Kernel<void(View o, View d_o, Grad d_x, int axis)> softmax_backward{
    "softmax_backward"};

}  // namespace quipu
