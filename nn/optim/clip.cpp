#include "quipu/nn/optim/clip.h"

#include <cmath>

#include "quipu/autograd/knot.h"
#include "quipu/nn/optim/loss_scale.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

void check_max_norm(const char* kind, double max_norm) {
  check(std::isfinite(max_norm) && max_norm >= 0, kind, ": max_norm is ", max_norm,
        ", but a finite number from 0 on is wanted");
}

/// min(1, max_norm / norm), without a division by 0.
Tensor clip_factor(const Tensor& norm, double max_norm) {
  return max_norm / maximum(norm, max_norm);
}

}  // namespace

std::vector<Tensor> detail::gradients_of(const NamedTensors& parameters, const char* kind) {
  std::vector<Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    check(!parameter.grad_is_partial(), kind, ": the gradient of ", name,
          " is partial, because an error ended backward; call zero_grad() and run it again");
    if (const Tensor g = parameter.grad(); g.defined()) gradients.push_back(g);
  }
  return gradients;
}

ControlledGradients control_gradients(const NamedTensors& parameters, const StepOptions& options,
                                      const char* kind) {
  check_max_norm(kind, options.max_norm);
  const NoGrad pause;
  const std::vector<Tensor> gradients = gradients_of(parameters, kind);
  ControlledGradients result;
  LossScale* const scale = options.loss_scale;
  if (gradients.empty() || (options.max_norm == 0 && !scale && !options.skip_nonfinite))
    return result;
  result.norm = global_norm(gradients);
  if (scale || options.skip_nonfinite) result.control.skip = ne(result.norm * 0, 0);
  if (scale) {
    result.control.scale = scale->inverse();
    result.norm = result.norm * result.control.scale;
    scale->update(result.control.skip);
  }
  if (options.max_norm > 0) {
    const Tensor factor = clip_factor(result.norm, options.max_norm);
    result.control.scale = scale ? result.control.scale * factor : factor;
  }
  return result;
}

Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm) {
  check_max_norm("clip_grad_norm", max_norm);
  check(max_norm > 0, "clip_grad_norm: max_norm is 0, which would leave nothing of the gradients");
  const NoGrad pause;
  const std::vector<Tensor> gradients = gradients_of(parameters, "clip_grad_norm");
  if (gradients.empty()) {
    return zeros({}, f32, parameters.empty() ? Device() : parameters.front().second.device());
  }
  const Tensor norm = global_norm(gradients);
  const Tensor factor = clip_factor(norm, max_norm);
  for (const Tensor& g : gradients) g.mul_(factor);
  return norm;
}

}  // namespace quipu::nn
