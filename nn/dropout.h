#pragma once
// Dropout as a module.
#include "quipu/nn/module.h"

namespace quipu::nn {

/// While training, each entry becomes 0 with probability p and is divided by 1 - p otherwise; else
/// x itself. Numbers come from the default generator, so that `recompute` draws them again.
struct Dropout : Module {
  Dropout() = default;
  explicit Dropout(double probability);
  void members(Members&) override {}
  /// x of any shape and floating type -> the same.
  Tensor operator()(const Tensor& x) const;

  double p = 0;  // probability of a 0, from 0 to 1
};

}  // namespace quipu::nn
