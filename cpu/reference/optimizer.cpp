// Updates of parameters (their formulas are in ops/optimizer_updates.h), and the norm of a list.
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/optimizer_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// A parameter p, its gradient g and what the optimizer remembers; steps, this one included.
struct Update {
  Array p, g, first, second;
  double step;
};

/// change(update) for each parameter of a list.
template <class Change>
void update_all(const UpdateList& list, Change change) {
  if (list.skip.defined && read(list.skip).flat[0] != 0) return;
  const double scale = list.scale.defined ? read(list.scale).flat[0] : 1;
  for (const UpdateItem& item : list.items) {
    if (!item.step.defined) continue;
    const std::int64_t step = read_whole(item.step)[0];
    const bool most = step == std::numeric_limits<std::int64_t>::max();
    store(item.step, WholeArray::Constant(1, most ? step : step + 1));
  }
  for (const UpdateItem& item : list.items) {
    const View& kept = item.master.defined ? item.master : item.parameter;
    Update update{read(kept).flat, scale * read(item.gradient).flat, read(item.first).flat,
                  read(item.second).flat, item.step.defined ? read(item.step).flat[0] : 0};
    change(update);
    store(item.first, update.first);
    store(item.second, update.second);
    store(kept, update.p);
    if (item.master.defined) store(item.parameter, read(item.master));
  }
}

void sgd(const UpdateList& list, const SgdOptions& options) {
  const SgdOptions o = list.with_rate(options);
  const double coupled = o.decoupled ? 0 : o.weight_decay, decoupled = o.weight_decay - coupled;
  update_all(list, [&](Update& u) {
    u.g += coupled * u.p;
    if (o.momentum > 0) u.first = o.momentum * u.first + u.g;
    Array step = o.momentum > 0 ? u.first : u.g;
    if (o.nesterov) step = u.g + o.momentum * u.first;
    u.p -= o.lr * (decoupled * u.p + step);
  });
}

void adamw(const UpdateList& list, const AdamWOptions& options) {
  const AdamWOptions o = list.with_rate(options);
  update_all(list, [&](Update& u) {
    u.first = o.beta1 * u.first + (1 - o.beta1) * u.g;
    u.second = o.beta2 * u.second + (1 - o.beta2) * u.g.square();
    const double c1 = 1 - std::pow(o.beta1, u.step), c2 = 1 - std::pow(o.beta2, u.step);
    u.p -= o.lr * (o.weight_decay * u.p + (u.first / c1) / ((u.second / c2).sqrt() + o.eps));
  });
}

void lion(const UpdateList& list, const LionOptions& options) {
  const LionOptions o = list.with_rate(options);
  update_all(list, [&](Update& u) {
    const Array direction = o.beta1 * u.first + (1 - o.beta1) * u.g;
    const Array sign = direction.unaryExpr([](double d) {
      return d > 0 ? 1 : d < 0 ? -1 : d;
    });  // NaN stays
    u.p -= o.lr * (sign + o.weight_decay * u.p);
    u.first = o.beta2 * u.first + (1 - o.beta2) * u.g;
  });
}

void global_norm(const NormList& list, View, View norm) {
  double squares = 0;
  for (const NormItem& item : list.items) squares += read(item.x).flat.square().sum();
  store(norm, Array::Constant(1, std::sqrt(squares)));
}

}  // namespace
}  // namespace reference

void register_reference_optimizer() {
  sgd_kernel.provide(Variant::reference, reference::sgd);
  adamw_kernel.provide(Variant::reference, reference::adamw);
  lion_kernel.provide(Variant::reference, reference::lion);
  global_norm_kernel.provide(Variant::reference, reference::global_norm);
}

}  // namespace quipu::detail
