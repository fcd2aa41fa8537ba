#include "rewrite.h"

#include <algorithm>
#include <set>

namespace quipu::programs {

void for_each_statement(Statements& statements, const std::function<void(Statement&)>& f) {
  for (Statement& s : statements) {
    f(s);
    for_each_statement(s.body, f);
  }
}

void rename(Program& p, Value from, Value to) {
  const auto change = [&](Value& v) { v = v == from ? to : v; };
  for_each_statement(p.statements,
                     [&](Statement& s) { std::for_each(s.in.begin(), s.in.end(), change); });
  std::erase_if(p.hooks, [&](const HookOn& hook) { return hook.value == from; });
  for (WalkFrom& w : p.walks) {
    change(w.loss);
    std::for_each(w.with_respect_to.begin(), w.with_respect_to.end(), change);
  }
}

namespace {

std::set<Value> used_values(const Program& p) {
  std::set<Value> used;
  Statements all = p.statements;
  for_each_statement(all, [&](Statement& s) { used.insert(s.in.begin(), s.in.end()); });
  for (const HookOn& hook : p.hooks) used.insert(hook.value);
  for (const WalkFrom& w : p.walks) {
    used.insert(w.loss);
    used.insert(w.with_respect_to.begin(), w.with_respect_to.end());
  }
  return used;
}

}  // namespace

Program without_dead(Program p) {
  for (std::size_t before = p.statements.size() + 1; before != p.statements.size();) {
    before = p.statements.size();
    const std::set<Value> used = used_values(p);
    std::erase_if(p.statements, [&](const Statement& s) {
      return !s.out.empty() &&
             std::none_of(s.out.begin(), s.out.end(), [&](Value v) { return used.contains(v); });
    });
  }
  const std::set<Value> used = used_values(p);
  std::erase_if(p.leaves, [&](const Leaf& leaf) { return !used.contains(leaf.value); });
  return p;
}

Tensors run_along(const Program& p) {
  Tensors values(static_cast<std::size_t>(p.values));
  const Tape tape;
  for (const Leaf& leaf : p.leaves) values[static_cast<std::size_t>(leaf.value)] = make(leaf, {});
  for (const Statement& s : p.statements) {
    const Tensors out = run(s, values);
    for (std::size_t k = 0; k < s.out.size(); ++k) {
      values[static_cast<std::size_t>(s.out[k])] = out[k];
    }
  }
  return values;
}

bool fit_upstreams(Program& p) {
  try {
    const Tensors values = run_along(p);
    for (WalkFrom& w : p.walks) {
      const Tensor& loss = values[static_cast<std::size_t>(w.loss)];
      if (w.upstream ? w.upstream->shape == loss.shape() : loss.numel() == 1) continue;
      if (!w.upstream) w.upstream.emplace();
      w.upstream->shape = loss.shape();
      w.upstream->dtype = loss.dtype();
    }
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace quipu::programs
