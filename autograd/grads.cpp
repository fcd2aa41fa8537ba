// What a backward rule gets to see of the walk.
#include <algorithm>

#include "quipu/autograd/walk.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/dispatch/overlap.h"

namespace quipu {
using namespace detail;

bool Grads::wants(int input) const {
  return walk_.wants(walk_.knot(knot_).inputs[static_cast<std::size_t>(input)]);
}

Grad Grads::hand_out(int input, bool stays_out) {
  if (!wants(input)) return {};
  const Edge& edge = walk_.knot(knot_).inputs[static_cast<std::size_t>(input)];
  const Walk::Target target = walk_.target(edge);
  const bool taken = std::any_of(out_.begin(), out_.end(), [&](const Tensor& other) {
    return &other.storage() == &target.buffer.storage() && may_overlap(other, target.buffer);
  });
  if (!taken) {
    if (stays_out) out_.push_back(target.buffer);
    if (detail::anomaly_mode()) seen_.emplace_back(input, target.buffer);
    return {target.buffer, !target.fresh};
  }
  const Tensor buffer =
      workspace(target.buffer.shape(), target.buffer.dtype(), target.buffer.device());
  later_.emplace_back(input, buffer);
  return Grad::write_to(buffer);
}

Grad Grads::operator[](int input) {
  return hand_out(input, true);
}

void Grads::add(int input, const Tensor& gradient) {
  if (!wants(input)) return;
  const GradientBuffer held = GradientBuffer::borrow(gradient);  // whatever memory it lies in
  with(input, [&](const Grad& g) {
    check(can_broadcast(g.view.shape, gradient.shape()), "the backward rule gives input ", input,
          " a gradient of shape ", gradient.shape(), ", but the input has shape ", g.view.shape);
    add_into_kernel(g, gradient);
  });
}

void Grads::pass(int input, const Tensor& gradient) {
  if (!wants(input)) return;
  const Edge& edge = walk_.knot(knot_).inputs[static_cast<std::size_t>(input)];
  if (!walk_.accepts(edge, gradient)) return add(input, gradient);
  const auto whose = std::find_if(d_outputs_.begin(), d_outputs_.end(), [&](const auto& d_o) {
    return d_o.shares_memory_with(gradient);
  });
  walk_.hand_on(edge, whose != d_outputs_.end() ? whose->share_as(gradient)
                                                : GradientBuffer::borrow(gradient));
}

void Grads::give(int input, Tensor gradient) {
  if (!wants(input)) return;
  const Edge& edge = walk_.knot(knot_).inputs[static_cast<std::size_t>(input)];
  if (!walk_.accepts(edge, gradient)) return add(input, gradient);
  walk_.hand_on(edge, GradientBuffer::own(std::move(gradient)));
}

void Grads::lend() const {
  for (const GradientBuffer& d_o : d_outputs_) d_o.lend();
}

void Grads::finish() {
  for (const auto& [input, buffer] : std::exchange(later_, {})) {
    const Edge& edge = walk_.knot(knot_).inputs[static_cast<std::size_t>(input)];
    add_into_kernel(Grad::add_to(walk_.target(edge).buffer), buffer);
  }
  for (const auto& [input, buffer] : seen_) {
    inspect_gradient(buffer, detail::concat("the gradient of input ", input).c_str());
  }
}

GradientBuffer detail::apply_hooks(const AutogradMeta& meta, GradientBuffer gradient) {
  if (meta.hooks.empty()) return gradient;
  Tensor g = gradient.taken_or_copied();
  gradient = {};  // so that a hook may change it in place
  for (std::size_t i = 0; i < meta.hooks.size(); ++i) {
    if (i > 0) g = copy_of_gradient(g);  // the hook before may have kept it
    const Tensor changed = meta.hooks[i](g);
    if (!changed.defined()) continue;
    check(changed.shape() == g.shape() && changed.dtype() == g.dtype() &&
              changed.device() == g.device(),
          "a hook returned ", changed.dtype(), changed.shape(), " on ", changed.device(),
          " for a gradient ", g.dtype(), g.shape(), " on ", g.device());
    g = changed;
  }
  return GradientBuffer::borrow(g);
}

void detail::inspect_gradient(const Tensor& gradient, const char* what) {
  const std::int64_t bad = first_nonfinite(gradient);
  if (bad < 0) return;
  const std::string scope = scope_path(thread_context().scope);
  fail(what, " ", gradient.dtype(), gradient.shape(),
       " has a NaN or an infinity, first at element ", bad, " (scope ", scope.empty() ? "-" : scope,
       "); found by anomaly mode");
}

}  // namespace quipu
