#pragma once
// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv:1711.05101).
#include "quipu/nn/optim/optimizer.h"

namespace quipu::nn {

/// See adamw_update in ops/optimizer_updates.h. Remembers exp_avg, exp_avg_sq and step.
class AdamW : public Optimizer {
 public:
  explicit AdamW(const NamedTensors& parameters, const AdamWOptions& options = {},
                 bool master_weights = true);
  explicit AdamW(const ParameterGroups<AdamWOptions>& groups, bool master_weights = true);

 protected:
  void update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
              const GradientControl& control) override;

 private:
  std::vector<AdamWOptions> options_;
};

}  // namespace quipu::nn
