#include "quipu/nn/module.h"

#include <algorithm>
#include <functional>
#include <ostream>

#include "quipu/autograd/knot.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;

Members::Members(Module& root) {
  entries_.push_back({Kind::module, 0, "", "", &root, nullptr});
  open_.push_back(0);
  root.members(*this);
}

void Members::add(Kind kind, std::string_view name, Module* module, Tensor* tensor) {
  const Entry& around = entries_[open_.back()];
  const std::string path = concat(around.path, around.path.empty() ? "" : ".", name);
  check(!name.empty() && name.find('.') == name.npos, "members: '", path,
        "' is no name: it must not be empty nor have dots");
  for (std::size_t i = open_.back() + 1; i < entries_.size(); ++i) {
    check(entries_[i].path != path, "members: two are called '", path, "'");
  }
  entries_.push_back({kind, around.depth + 1, std::string(name), path, module, tensor});
}

Members& Members::operator()(std::string_view name, Tensor& parameter) {
  if (parameter.defined()) add(Kind::parameter, name, nullptr, &parameter);
  return *this;
}

Members& Members::buffer(std::string_view name, Tensor& buffer) {
  if (buffer.defined()) add(Kind::buffer, name, nullptr, &buffer);
  return *this;
}

Members& Members::operator()(std::string_view name, Module& module) {
  enter(name, &module);
  module.members(*this);
  return leave();
}

void Members::enter(std::string_view name, Module* module) {
  add(Kind::module, name, module, nullptr);
  if (module) {
    const auto around = std::find_if(open_.rbegin(), open_.rend(),
                                     [&](std::size_t i) { return entries_[i].module != nullptr; });
    const std::size_t outer = entries_[*around].path.size();
    const std::string relative = entries_.back().path.substr(outer == 0 ? 0 : outer + 1);
    // Written only where it changes, so that several threads may look at a module that is named.
    if (module->name_ != relative) module->name_ = relative;
  }
  open_.push_back(entries_.size() - 1);
}

Members& Members::leave() {
  open_.pop_back();
  return *this;
}

std::vector<Module::Entry> Module::walk() const {
  // members() hands out references that may be written through; functions that are const do not.
  return std::move(Members(const_cast<Module&>(*this)).entries_);
}

NamedTensors Module::tensors(bool parameters, bool buffers) const {
  NamedTensors result;
  for (const Entry& e : walk()) {
    if (!(e.kind == Members::Kind::parameter ? parameters
                                             : e.kind == Members::Kind::buffer && buffers)) {
      continue;
    }
    const bool listed = std::any_of(result.begin(), result.end(),
                                    [&](const auto& r) { return r.second.same_as(*e.tensor); });
    if (!listed) result.emplace_back(e.path, *e.tensor);
  }
  return result;
}

NamedTensors Module::parameters() const {
  return tensors(true, false);
}
NamedTensors Module::buffers() const {
  return tensors(false, true);
}
NamedTensors Module::state() const {
  return tensors(true, true);
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& [name, p] : parameters()) count += p.numel();
  return count;
}

LoadReport Module::load_state(const NamedTensors& state, Loading loading) {
  const NamedTensors own = this->state();
  NamedTensors cast = state;
  for (auto& [name, values] : cast) {
    const Tensor* const place = find_tensor(own, name);
    if (place && is_floating(place->dtype()) && is_floating(values.dtype())) {
      values = values.detach().to(place->dtype());
    }
  }
  return load_into(own, cast, loading);
}

void Module::replace(const std::function<Tensor(const Tensor&, bool)>& f) {
  const NoGrad no_grad;
  std::vector<std::pair<Tensor, Tensor>> done;  // old and new: what was shared stays shared
  for (const Entry& e : walk()) {
    if (e.kind == Members::Kind::module) continue;
    Tensor& t = *e.tensor;
    const auto known =
        std::find_if(done.begin(), done.end(), [&](const auto& d) { return d.first.same_as(t); });
    if (known != done.end()) {
      t = known->second;
      continue;
    }
    const Tensor old = t, plain = t.detach(), fresh = f(plain, e.kind == Members::Kind::parameter);
    if (!fresh.same_as(plain)) {
      if (old.requires_grad()) fresh.set_requires_grad();
      fresh.storage().set_category(Category::parameter);
      t = fresh;
    }
    done.emplace_back(old, t);
  }
}

void Module::own_tensors() {
  replace([](const Tensor& t, bool) { return t.clone(); });
}

void Module::to(Device device) {
  replace([&](const Tensor& t, bool) { return t.to(device); });
}

void Module::to(DType dtype) {
  const OpScope op("to");
  check(is_floating(dtype), "a module in ", dtype, " is not possible; only floating types are");
  replace([&](const Tensor& t, bool parameter) {
    if (!is_floating(t.dtype())) return t;
    return t.to(parameter ? dtype : compute_type(dtype));
  });
}

void Module::train(bool on) {
  for (const Entry& e : walk()) {
    if (e.module) e.module->training_ = on;
  }
}

void Module::set_requires_grad(bool on) {
  for (const auto& [name, p] : parameters()) {
    p.set_requires_grad(on);
    p.storage().set_category(Category::parameter);
  }
}

MemoryScope Module::scope() const {
  return name_.empty() ? MemoryScope(thread_context().scope) : MemoryScope(name_);
}

std::ostream& operator<<(std::ostream& out, const Module& module) {
  return out << module.tree();
}

}  // namespace quipu::nn
