#pragma once
// Adam with decoupled weight decay.
#include "quipu/nn/optimizer.h"

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
