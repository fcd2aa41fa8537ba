#pragma once
// Lion: steps of one size, by the sign of a running mean (Chen et al. 2023, arXiv:2302.06675).
#include "quipu/nn/optim/optimizer.h"

namespace quipu::nn {

/// See lion_update in ops/optimizer_updates.h. Remembers exp_avg.
class Lion : public Optimizer {
 public:
  explicit Lion(const NamedTensors& parameters, const LionOptions& options = {},
                bool master_weights = true);
  explicit Lion(const ParameterGroups<LionOptions>& groups, bool master_weights = true);

 protected:
  void update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
              const GradientControl& control) override;

 private:
  std::vector<LionOptions> options_;
};

}  // namespace quipu::nn
