#pragma once
// What is done to all gradients before an update: norm, clipping, loss scale, skipping what is not
// finite. Everything stays on the device.
#include "quipu/core/io/safetensors.h"
#include "quipu/ops/optimizer_updates.h"

namespace quipu::nn {

class LossScale;

/// What Optimizer::step does to gradients on their way into the update. Nothing by default.
struct StepOptions {
  double max_norm = 0;              // 0: no clipping. Else longer gradients are shortened to it
  LossScale* loss_scale = nullptr;  // gradients are divided by it, then it adapts
  bool skip_nonfinite = false;      // a gradient with a NaN or infinity: no parameter changes.
                                    // Always so with a loss scale
};

/// What control_gradients found, all on the device.
struct ControlledGradients {
  Tensor norm;  // before clipping, loss scale taken out; undefined if nothing needed it
  quipu::detail::GradientControl control;  // for Optimizer::apply
};

/// Looks at all gradients once, changes none of them. Parameters without gradient do not count;
/// throws if a gradient is partial. `kind` stands before error messages.
ControlledGradients control_gradients(const NamedTensors& parameters, const StepOptions& options,
                                      const char* kind = "control_gradients");

/// Multiplies all gradients, in place, by max_norm / norm if their norm is larger. Returns the norm
/// before, on the device. `Optimizer::step` does it without the extra pass.
Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm);

namespace detail {

/// The gradients that are there. Throws if one is partial, and names its parameter.
std::vector<Tensor> gradients_of(const NamedTensors& parameters, const char* kind);

}  // namespace detail

}  // namespace quipu::nn
