#pragma once
// What a back end provides for dropout. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/random/random.h"

namespace quipu::detail {

/// o (=|+=) x / (1 - p) where the uniform at this row-major position is at least p, else 0. The
/// mask is not stored: backward draws it again from the same state.
inline constinit Kernel<void(View x, Target o, double p, PhiloxState)> dropout_kernel{
    "dropout", "x o p state"};

}  // namespace quipu::detail
