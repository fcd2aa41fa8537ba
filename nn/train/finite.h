#pragma once
// A loss that is not finite stops a run, with the place where it went wrong.
#include <cstdint>
#include <functional>

#include "quipu/core/io/safetensors.h"

namespace quipu::nn {

/// Throws if the loss is NaN or infinite. The message names the step and what went wrong first: a
/// parameter that is not finite already, or else the operator, found by calling `rerun` (forward
/// and backward of the same step) under AnomalyMode. Call it before the optimizer's step, while the
/// parameters are those of the loss. Reads the loss on the host; does nothing on meta.
void check_finite(const Tensor& loss, std::int64_t step, const std::function<void()>& rerun = {},
                  const NamedTensors& parameters = {});

}  // namespace quipu::nn
