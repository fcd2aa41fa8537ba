#include "quipu/nn/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

/// A polynomial of odd degree, run again and again, that drives singular values in (0, 1] to about
/// 1. Its steep start is worth more than an exact 1 at the end.
Tensor near_orthogonal(const Tensor& matrix, int iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = matrix.size(0) > matrix.size(1);
  Tensor x = tall ? matrix.t() : matrix;
  x = x / (global_norm({&x, 1}) + 1e-7);
  for (int i = 0; i < iterations; ++i) {
    const Tensor square = matmul(x, x.t());
    x = a * x + matmul(b * square + c * matmul(square, square), x);
  }
  return tall ? x.t() : x;
}

/// Runs the momentum on and returns where it points.
Tensor advance(const ParameterUpdate& u, const MuonOptions& o, const GradientControl& control) {
  const DType wide = u.first.dtype();
  Tensor g = u.gradient.to(wide);
  if (control.scale.defined()) g = g * control.scale.to(wide);
  const Tensor next = u.first * o.momentum + g;
  u.first.copy_from(control.skip.defined() ? where(control.skip, u.first, next) : next);
  return o.nesterov ? g + u.first * o.momentum : u.first;
}

void check_options(const MuonOptions& o) {
  check(o.momentum >= 0 && o.momentum < 1, "Muon: momentum is ", o.momentum,
        ", but a number in [0, 1) is wanted");
  check(std::isfinite(o.weight_decay) && o.weight_decay >= 0, "Muon: weight_decay is ",
        o.weight_decay, ", but a finite number from 0 on is wanted");
  check(o.iterations > 0, "Muon: iterations is ", o.iterations, ", but must be positive");
}

}  // namespace

Muon::Muon(const NamedTensors& parameters, const MuonOptions& options, bool master_weights)
    : Muon(ParameterGroups<MuonOptions>{{parameters, options}}, master_weights) {}

Muon::Muon(const ParameterGroups<MuonOptions>& groups, bool master_weights)
    : Optimizer("Muon", layout(groups, [](const MuonOptions&) { return Memory{{"momentum"}}; }),
                master_weights) {
  for (const auto& group : groups) {
    check_options(group.options);
    for (const auto& [name, parameter] : group.parameters) {
      check(parameter.dim() >= 2, "Muon: parameter ", name, " has shape ", parameter.shape(),
            ", but only matrices can be made orthogonal; give it to another optimizer");
    }
    options_.push_back(group.options);
  }
}

void Muon::update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
                  const GradientControl& control) {
  const MuonOptions& o = options_[group];
  for (const ParameterUpdate& u : list) {
    if (u.parameter.numel() == 0) continue;
    const std::int64_t rows = u.parameter.size(0), columns = u.parameter.numel() / rows;
    const Tensor direction =
        near_orthogonal(advance(u, o, control).reshape({rows, columns}), o.iterations);
    const double factor =
        std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
    ParameterUpdate plain = u;
    plain.gradient = direction.reshape(u.parameter.shape());
    const SgdOptions apply{.lr = lr * factor, .weight_decay = o.weight_decay / factor};
    sgd_update({&plain, 1}, apply,
               {.skip = control.skip, .lr = control.lr, .lr_factor = factor * control.lr_factor});
  }
}

}  // namespace quipu::nn
