#include "quipu/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "quipu/autograd/knot.h"
#include "quipu/core/graph/step_recorder.h"
#include "quipu/nn/named_state.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

NamedTensors selected(const NamedTensors& parameters,
                      const std::function<bool(const std::string&, const Tensor&)>& keep) {
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    if (keep(name, parameter)) result.emplace_back(name, parameter);
  }
  return result;
}

Optimizer::Optimizer(const char* kind, std::vector<Group> groups, bool master_weights)
    : kind_(kind), groups_(std::move(groups)), master_weights_(master_weights) {
  check(!groups_.empty(), kind_, ": there are no parameters");
  lr_ = groups_.front().lr;
  bool counts = false;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    check(std::isfinite(groups_[g].lr) && groups_[g].lr >= 0, kind_, ": lr of group ", g, " is ",
          groups_[g].lr, ", but a finite number from 0 on is wanted");
    ratios_.push_back(lr_ > 0 ? groups_[g].lr / lr_ : 1);
    counts = counts || groups_[g].memory.counts;
    for (const auto& [name, parameter] : groups_[g].parameters) add_parameter(name, parameter, g);
  }
  check(!slots_.empty(), kind_, ": there are no parameters");
  const OpScope op(kind_);
  if (counts) {
    steps_ = zeros({static_cast<std::int64_t>(slots_.size())}, i64,
                   parameters_.front().second.device(), Category::optimizer);
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].tensors.parameter.requires_grad()) prepare(slots_[i], i);
  }
}

void Optimizer::add_parameter(const std::string& name, const Tensor& parameter, std::size_t group) {
  check(parameter.defined(), kind_, ": parameter ", name, " is undefined");
  check(is_floating(parameter.dtype()), kind_, ": parameter ", name, " is ", parameter.dtype(),
        ", but only floating types are trained");
  const Device first = slots_.empty() ? parameter.device() : slots_[0].tensors.parameter.device();
  check(parameter.device() == first, kind_, ": parameter ", name, " is on ", parameter.device(),
        ", but the first one is on ", first, "; one optimizer works on one device");
  for (const Slot& slot : slots_) {
    const bool same = slot.tensors.parameter.same_as(parameter);
    check(!same || slot.group == group, kind_, ": ", name, " is the same tensor as ", slot.name,
          " in another group; give it once");
    if (same) return;
    check(slot.name != name, kind_, ": two parameters are called ", name);
  }
  slots_.push_back({name, group, {.parameter = parameter}});
  parameters_.emplace_back(name, parameter);
}

/// Memory for what is remembered of one parameter.
void Optimizer::prepare(Slot& slot, std::size_t index) {
  const Tensor& p = slot.tensors.parameter;
  const Group& group = groups_[slot.group];
  for (std::size_t i = 0; i < group.memory.names.size(); ++i) {
    Tensor& place = i == 0 ? slot.tensors.first : slot.tensors.second;
    place = zeros(p.shape(), compute_type(p.dtype()), p.device(), Category::optimizer);
  }
  if (master_weights_ && is_reduced(p.dtype())) {
    const NoGrad pause;
    slot.tensors.master = empty(p.shape(), f32, p.device(), Category::optimizer);
    slot.tensors.master.copy_from(p);
    slot.version = p.storage().version();
  }
  if (group.memory.counts) slot.tensors.step = steps_.select(0, static_cast<std::int64_t>(index));
  slot.ready = true;
}

/// Somebody else may have changed the parameter, a loaded file for one: the master copy follows
/// wherever it does not round to what the parameter is now.
void Optimizer::refresh_master(Slot& slot) {
  const Tensor &p = slot.tensors.parameter, &master = slot.tensors.master;
  if (!master.defined() || slot.version == p.storage().version()) return;
  master.copy_from(where(eq(master.to(p.dtype()), p), master, p.to(f32)));
}

Tensor Optimizer::step(const StepOptions& options) {
  const ControlledGradients gradients = control_gradients(parameters_, options, kind_);
  apply(gradients.control);
  return gradients.norm;
}

void Optimizer::apply(const GradientControl& control) {
  gradients_of(parameters_, kind_);  // all are checked before any is used
  const NoGrad pause;
  std::vector<std::vector<ParameterUpdate>> lists(groups_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const Tensor gradient = slot.tensors.parameter.grad();
    if (!gradient.defined()) continue;
    if (!slot.ready) {
      const OpScope op(kind_);
      prepare(slot, i);
    }
    refresh_master(slot);
    lists[slot.group].push_back(slot.tensors);
    lists[slot.group].back().gradient = gradient;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (lists[g].empty()) continue;
    GradientControl with_rate = control;
    if (step_recorder) with_rate.lr = step_recorder->number([this, g] { return lr_ * ratios_[g]; });
    update(g, lr_ * ratios_[g], lists[g], with_rate);
  }
  for (Slot& slot : slots_) slot.version = slot.tensors.parameter.storage().version();
}

void Optimizer::zero_grad(ZeroGrad how) {
  check_enum("zero_grad: how", how, ZeroGrad::keep);
  const NoGrad pause;
  for (const auto& [name, parameter] : parameters_) {
    const Tensor gradient = parameter.grad();
    if (how == ZeroGrad::keep && gradient.defined()) {
      parameter.set_grad(gradient.zero_());  // its own, so nothing is copied
    } else {
      parameter.zero_grad();
    }
  }
}

void Optimizer::set_lr(double lr) {
  check(std::isfinite(lr) && lr >= 0, kind_, ": lr is ", lr,
        ", but a finite number from 0 on is wanted");
  lr_ = lr;
}

NamedTensors Optimizer::remembered(const Slot& slot) const {
  NamedTensors result;
  if (!slot.ready) return result;
  const Group& group = groups_[slot.group];
  for (std::size_t i = 0; i < group.memory.names.size(); ++i) {
    result.emplace_back(slot.name + "." + group.memory.names[i],
                        i == 0 ? slot.tensors.first : slot.tensors.second);
  }
  if (slot.tensors.master.defined()) {
    result.emplace_back(slot.name + ".master", slot.tensors.master);
  }
  if (group.memory.counts) result.emplace_back(slot.name + ".step", slot.tensors.step);
  return result;
}

NamedTensors Optimizer::state() const {
  NamedTensors result{{"lr", scalar_tensor(lr_, f64)}};
  for (const Slot& slot : slots_) {
    for (auto& entry : remembered(slot)) result.push_back(std::move(entry));
  }
  return result;
}

void Optimizer::load_state(const NamedTensors& state) {
  std::map<std::string, Tensor> given(state.begin(), state.end());
  // A parameter that has had no need so far gets its memory if the state knows it.
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::string prefix = slots_[i].name + ".";
    const auto found = given.lower_bound(prefix);
    const bool known = found != given.end() && found->first.starts_with(prefix);
    if (!slots_[i].ready && known) prepare(slots_[i], i);
  }
  const NamedTensors own = this->state();
  std::string problems;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems += "\n  missing: " + name;
    } else if (found->second.shape() != tensor.shape()) {
      problems += concat("\n  ", name, " has shape ", found->second.shape(), " there, but ",
                         tensor.shape(), " here");
    }
  }
  for (const auto& [name, tensor] : state) {
    const bool wanted =
        std::any_of(own.begin(), own.end(),
                    [&given_name = name](const auto& entry) { return entry.first == given_name; });
    if (!wanted) problems += "\n  left over: " + name;
  }
  check(problems.empty(), kind_, ": the state is of another optimizer or model:", problems);
  for (const auto& [name, tensor] : own) {
    if (name.ends_with(".step")) check_counter(kind_, name, given.at(name));
  }
  const NoGrad pause;
  set_lr(given.at("lr").item());
  for (const auto& [name, tensor] : own) {
    if (name != "lr") tensor.copy_from(given.at(name));
  }
}

}  // namespace quipu::nn
