#pragma once
// What a back end provides for dropout.
#include "quipu/core/dispatch.h"
#include "quipu/core/random.h"

namespace quipu {

/// o (=|+=) x / (1 - p) where the uniform at this row-major position is at least p, else 0. The
/// mask is not stored: backward draws it again from the same state.
inline constinit Kernel<void(View x, Grad o, double p, PhiloxState)> dropout_kernel{"dropout"};

}  // namespace quipu
