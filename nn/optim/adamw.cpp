#include "quipu/nn/optim/adamw.h"

namespace quipu::nn {
using namespace quipu::detail;

AdamW::AdamW(const NamedTensors& parameters, const AdamWOptions& options, bool master_weights)
    : AdamW(ParameterGroups<AdamWOptions>{{parameters, options}}, master_weights) {}

AdamW::AdamW(const ParameterGroups<AdamWOptions>& groups, bool master_weights)
    : Optimizer("AdamW",
                layout(groups,
                       [](const AdamWOptions&) {
                         return Memory{{"exp_avg", "exp_avg_sq"}, true};
                       }),
                master_weights) {
  for (const auto& group : groups) options_.push_back(group.options);
}

void AdamW::update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
                   const GradientControl& control) {
  AdamWOptions options = options_[group];
  options.lr = lr;
  adamw_update(list, options, control);
}

}  // namespace quipu::nn
