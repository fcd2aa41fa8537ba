#pragma once
// Stochastic gradient descent with momentum.
#include "quipu/nn/optim/optimizer.h"

namespace quipu::nn {

/// See sgd_update in ops/optimizer_updates.h. Remembers momentum, if there is one.
class SGD : public Optimizer {
 public:
  explicit SGD(const NamedTensors& parameters, const SgdOptions& options = {},
               bool master_weights = true);
  explicit SGD(const ParameterGroups<SgdOptions>& groups, bool master_weights = true);

 protected:
  void update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
              const GradientControl& control) override;

 private:
  std::vector<SgdOptions> options_;
};

}  // namespace quipu::nn
