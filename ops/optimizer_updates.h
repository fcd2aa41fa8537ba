#pragma once
// Updates of parameters in place, one pass over each: every entry is read once and written once.
// A call takes a list, so that many small parameters cost one call. Nothing is recorded and no
// value is read on the host. Computed in f32 (f64 for f64 parameters), rounded once.
// Rates, eps and decays must be finite and not negative, momentum and betas in [0, 1).
#include <span>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

/// Stochastic gradient descent; plain p -= lr g by default.
struct SgdOptions {
  double lr = 1e-2;         // learning rate
  double momentum = 0;      // how much of the sum of past gradients stays; 0 keeps no state
  double weight_decay = 0;  // times the parameter is added to the gradient
  bool nesterov = false;    // the step looks ahead along the momentum, which it needs
  bool decoupled = false;  // the decay shrinks the parameter itself and does not enter the momentum
};

/// Adam with decoupled weight decay.
struct AdamWOptions {
  double lr = 1e-3;            // learning rate: about the size of a step, whatever the gradient's
  double beta1 = 0.9;          // how much of the running mean of gradients stays
  double beta2 = 0.999;        // how much of the running mean of their squares stays
  double eps = 1e-8;           // added to the root of that mean, so that it may be 0
  double weight_decay = 1e-2;  // shrinks parameters by lr * weight_decay a step
};

/// Lion: steps of +-lr, by the sign of a momentum.
struct LionOptions {
  double lr = 1e-4;         // learning rate: the size of each entry's step
  double beta1 = 0.9;       // share of the momentum in the sign; the rest is the gradient's
  double beta2 = 0.99;      // how much of the momentum stays
  double weight_decay = 0;  // shrinks parameters by lr * weight_decay a step
};

/// sqrt of the sum of all squares, on the tensors' device: f32 (), or f64 if one of them is. Not
/// finite if an entry is not. The list may not be empty.
Tensor global_norm(std::span<const Tensor> tensors);

namespace detail {

/// One parameter and what belongs to it. All have the parameter's shape, except `step`.
struct ParameterUpdate {
  Tensor parameter = {};  // f64, f32, bf16 or f16
  Tensor gradient = {};   // the parameter's type or f32
  Tensor first = {};      // what the optimizer remembers: f64 for f64 parameters, else f32
  Tensor second = {};     // likewise, for adamw
  /// f32, for bf16 and f16 parameters, may be left out. It is what is updated then; the parameter
  /// becomes its rounding.
  Tensor master = {};
  Tensor step = {};  // i64 (): how many updates there were; adamw needs it and counts
};

/// What happens to all gradients on their way into an update; each may be left out. Tensors are
/// read on the device.
struct GradientControl {
  Tensor scale = {};     // floating (): gradients are multiplied by it
  Tensor skip = {};      // bool (): if it is true, nothing changes
  Tensor lr = {};        // f64 (): the learning rate, in the place of the options',
  double lr_factor = 1;  // times this
};

/// With g + weight_decay p for the gradient: first = momentum first + g;
/// p -= lr (nesterov ? g + momentum first : first). Without momentum, `first` is not needed.
void sgd_update(std::span<const ParameterUpdate> list, const SgdOptions& options,
                const GradientControl& control = {});

/// Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101):
/// first = beta1 first + (1 - beta1) g; second = beta2 second + (1 - beta2) g^2;
/// p -= lr weight_decay p + lr (first / c1) / (sqrt(second / c2) + eps), where c = 1 - beta^step.
void adamw_update(std::span<const ParameterUpdate> list, const AdamWOptions& options,
                  const GradientControl& control = {});

/// Lion (Chen et al. 2023, arXiv:2302.06675):
/// p -= lr (sign(beta1 first + (1 - beta1) g) + weight_decay p);
/// first = beta2 first + (1 - beta2) g.
void lion_update(std::span<const ParameterUpdate> list, const LionOptions& options,
                 const GradientControl& control = {});

}  // namespace detail
}  // namespace quipu
