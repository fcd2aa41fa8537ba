#include "quipu/nn/optim/sgd.h"

namespace quipu::nn {
using namespace quipu::detail;

SGD::SGD(const NamedTensors& parameters, const SgdOptions& options, bool master_weights)
    : SGD(ParameterGroups<SgdOptions>{{parameters, options}}, master_weights) {}

SGD::SGD(const ParameterGroups<SgdOptions>& groups, bool master_weights)
    : Optimizer("SGD",
                layout(groups,
                       [](const SgdOptions& o) {
                         return o.momentum > 0 ? Memory{{"momentum"}} : Memory{};
                       }),
                master_weights) {
  for (const auto& group : groups) options_.push_back(group.options);
}

void SGD::update(std::size_t group, double lr, std::span<const ParameterUpdate> list,
                 const GradientControl& control) {
  SgdOptions options = options_[group];
  options.lr = lr;
  sgd_update(list, options, control);
}

}  // namespace quipu::nn
