#include "quipu/nn/optim/lion.h"

namespace quipu::nn {
using namespace quipu::detail;

Lion::Lion(const NamedTensors& parameters, const LionOptions& options, bool master_weights)
    : Lion(ParameterGroups<LionOptions>{{parameters, options}}, master_weights) {}

Lion::Lion(const ParameterGroups<LionOptions>& groups, bool master_weights)
    : Optimizer("Lion", layout(groups, [](const LionOptions&) { return Memory{{"exp_avg"}}; }),
                master_weights) {
  for (const auto& group : groups) options_.push_back(group.options);
}

void Lion::update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
                  const GradientControl& control) {
  LionOptions options = options_[group];
  options.lr = lr;
  lion_update(list, options, control);
}

}  // namespace quipu::nn
