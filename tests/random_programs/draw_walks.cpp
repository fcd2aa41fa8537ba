// The generator's last part: losses, hooks and walks.
#include <algorithm>

#include "draw.h"

namespace quipu::programs {
/// Most of what nobody used is added up to losses: as it is where shapes agree, else its sum.
void Draw::add_losses() {
  Value total = -1;
  for (const Value v : std::vector<Value>(visible_)) {
    if (uses_[static_cast<std::size_t>(v)] > 0 || !at(v).requires_grad() || chance(0.1)) continue;
    Value part = v;
    if (total >= 0 && at(v).shape() != at(total).shape()) {
      const Value weight = constant(at(v).shape(), at(v).dtype());
      if (!append({.op = named("mul"), .in = {v, weight}, .out = {}})) continue;
      if (!append({.op = named("sum"), .in = {statements_->back().out[0]}, .out = {}, .n = {0}}))
        continue;
      part = statements_->back().out[0];
    }
    if (total >= 0 && !append({.op = named("add"), .in = {total, part}, .out = {}})) continue;
    total = total < 0 ? part : statements_->back().out[0];
  }
}

void Draw::add_hooks() {
  if (smooth_ || chance(0.4)) return;
  for (int k = between(1, 4); k > 0; --k) {
    const Value v = find([](const Tensor& x) { return x.requires_grad(); });
    if (v < 0) continue;
    program_.hooks.push_back({v, static_cast<HookOn::Kind>(below(6))});
  }
  std::stable_sort(program_.hooks.begin(), program_.hooks.end(),
                   [](const HookOn& a, const HookOn& b) { return a.value < b.value; });
}

WalkFrom Draw::draw_walk() {
  const auto wanted = [](const Tensor& x) { return x.requires_grad(); };
  WalkFrom walk{.loss = find(wanted)};
  if (chance(0.6))
    walk.loss = *std::find_if(visible_.rbegin(), visible_.rend(),
                              [&](Value v) { return at(v).requires_grad(); });
  const Tensor& loss = at(walk.loss);
  if (loss.numel() != 1 || chance(0.3)) {
    walk.upstream = Leaf{.seed = leaf_seed(), .shape = loss.shape(), .dtype = loss.dtype()};
    if (chance(0.4)) walk.upstream->layout = some_layout(loss.shape());
  }
  if (chance(0.3)) {
    for (int k = between(1, 4); k > 0; --k) walk.with_respect_to.push_back(find(wanted));
  }
  walk.zero_grad_first = chance(0.2);
  walk.double_grads_first = chance(0.2);
  return walk;
}

void Draw::add_walks() {
  if (find([](const Tensor& x) { return x.requires_grad(); }) < 0) return;
  const int walks = chance(0.5) ? 1 : between(2, 3);
  for (int k = 1; k <= walks; ++k) {
    program_.walks.push_back(draw_walk());
    program_.walks.back().retain = k < walks ? chance(0.9) : chance(0.2);
  }
}

}  // namespace quipu::programs
