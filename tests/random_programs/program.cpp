#include "program.h"

#include <limits>
#include <set>

namespace quipu::programs {

Tensor make(const Leaf& leaf, Device device) {
  Generator generator(leaf.seed);
  Shape whole = leaf.shape;
  const int dims = whole.size();
  Dims reversed = Dims::filled(dims, 0);
  for (int d = 0; d < dims; ++d) reversed[d] = dims - 1 - d;
  if (leaf.layout == Layout::transposed) {
    for (int d = 0; d < dims; ++d) whole[d] = leaf.shape[dims - 1 - d];
  }
  if (leaf.layout == Layout::sliced && dims > 0) whole[dims - 1] *= 2;
  if (leaf.layout == Layout::expanded && dims > 0) whole[0] = 1;
  Tensor x;
  switch (leaf.content) {
    case Content::normal: x = randn(whole, leaf.dtype, device, generator).clamp_(-2, 2); break;
    case Content::positive: x = rand(whole, leaf.dtype, device, generator).add_(0.5); break;
    case Content::index: x = randint(0, leaf.bound, whole, leaf.dtype, device, generator); break;
    case Content::mask: x = rand(whole, f32, device, generator) < 0.5; break;
  }
  if (leaf.layout == Layout::transposed) x = x.permute(reversed);
  if (leaf.layout == Layout::sliced && dims > 0) x = x.slice(-1, 1, {}, 2);
  if (leaf.layout == Layout::expanded) x = x.expand(leaf.shape);
  if (leaf.requires_grad) x.set_requires_grad();
  if (leaf.grad_dtype) x.set_grad_dtype(*leaf.grad_dtype);
  return x;
}

std::vector<Value> inputs_and_captured(const Statement& s) {
  std::set<Value> used(s.in.begin(), s.in.end()), inner(s.parameters.begin(), s.parameters.end());
  for (const Statement& b : s.body) {
    for (const Value v : inputs_and_captured(b)) {
      if (!inner.contains(v)) used.insert(v);
    }
    inner.insert(b.out.begin(), b.out.end());
  }
  return {used.begin(), used.end()};
}

Generator& shared_generator() {
  static Generator generator;
  return generator;
}

void seed_generators(const Program& program) {
  manual_seed(program.seed);
  shared_generator().seed(program.seed + 1);
}

Tensors run(const Statement& s, const Tensors& values) {
  Tensors in;
  for (const Value v : s.in) in.push_back(values[static_cast<std::size_t>(v)]);
  std::optional<NoGrad> pause;
  if (s.op->is(Operator::in_place)) pause.emplace();
  if (s.body.empty()) {
    quipu::detail::check(s.op->run != nullptr, s.op->name, " has no body");
    const Tensors out = s.op->run(in, s.n, s.shape);
    quipu::detail::check(s.out.empty() || out.size() == s.out.size(), s.op->name, " gives ",
                         out.size(), " tensors; the program has ", s.out.size());
    return out;
  }
  Tensors captured(values.size());
  for (const Value v : inputs_and_captured(s)) {
    captured[static_cast<std::size_t>(v)] = values[static_cast<std::size_t>(v)];
  }
  const auto f = [&s, captured](const Tensors& inputs) {
    Tensors local = captured;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      local[static_cast<std::size_t>(s.parameters[k])] = inputs[k];
    }
    for (const Statement& inner : s.body) {
      const Tensors outputs = run(inner, local);
      for (std::size_t k = 0; k < inner.out.size(); ++k) {
        local[static_cast<std::size_t>(inner.out[k])] = outputs[k];
      }
    }
    return local[static_cast<std::size_t>(s.body.back().out[0])];
  };
  return {recompute(f, in)};
}

std::vector<std::size_t> last_uses(const Program& program) {
  std::vector<std::size_t> last(static_cast<std::size_t>(program.values), 0);
  const auto keep = [&](Value v) {
    last[static_cast<std::size_t>(v)] = std::numeric_limits<std::size_t>::max();
  };
  for (std::size_t k = 0; k < program.statements.size(); ++k) {
    for (const Value v : inputs_and_captured(program.statements[k])) {
      last[static_cast<std::size_t>(v)] = k;
    }
  }
  for (const Leaf& leaf : program.leaves) keep(leaf.value);
  for (const WalkFrom& walk : program.walks) {
    keep(walk.loss);
    for (const Value v : walk.with_respect_to) keep(v);
  }
  return last;
}

}  // namespace quipu::programs
