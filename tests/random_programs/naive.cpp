#include "naive.h"

#include <algorithm>
#include <cmath>

namespace quipu::programs {
using namespace detail;
namespace {

Tensor copy_of(const Tensor& x) {
  return x.detach().clone().contiguous();
}

/// The generators in another state while it lives.
class WithRandom {
 public:
  explicit WithRandom(const RandomState& state) { state.restore(); }
  ~WithRandom() { present_.restore(); }
  WithRandom(const WithRandom&) = delete;
  WithRandom& operator=(const WithRandom&) = delete;

 private:
  RandomState present_;
};

double largest(const Tensor& x) {
  double most = 0;
  for (const double v : x.to_vector()) most = std::max(most, std::abs(v));
  return most;
}

/// By its composition where it has one. In other types than f64 that one rounds more often.
Tensors run_simply(const Statement& s, const Tensors& in) {
  const bool exact = std::all_of(in.begin(), in.end(), [](const Tensor& x) {
    return x.dtype() == f64 || !is_floating(x.dtype());
  });
  return (exact && s.op->composed ? s.op->composed : s.op->run)(in, s.n, s.shape);
}

}  // namespace

double noise_of(DType t) {
  return t == f64 ? 0x1p-40 : t == f32 ? 0x1p-19 : t == f16 ? 0x1p-8 : 0x1p-5;
}

Tensor hooked(HookOn::Kind kind, const Tensor& gradient) {
  switch (kind) {
    case HookOn::Kind::keep:
    case HookOn::Kind::nothing: return {};
    case HookOn::Kind::same: return gradient;
    case HookOn::Kind::scale: return gradient * 1.5;
    case HookOn::Kind::in_place: return gradient * 2;
    case HookOn::Kind::expanded:
      return full({}, 0.5, gradient.dtype(), gradient.device()).expand(gradient.shape());
  }
  return {};
}

NaiveTape::NaiveTape(const Program& program, std::uint64_t noise)
    : program_(program), noise_(noise) {
  const auto values = static_cast<std::size_t>(program.values);
  for (Value v = 0; v < program.values; ++v) roots_.push_back(v);
  tracked_.resize(values);
  results_.resize(values);
  gradients_.resize(values);
  sums_.resize(values);
}

void NaiveTape::leaf(const Leaf& leaf) {
  tracked_[at(leaf.value)] = leaf.requires_grad;
  if (leaf.requires_grad) leaves_.push_back(leaf);
  note_type(leaf.dtype);
}

void NaiveTape::record(const Statement& s, const Tensors& values) {
  if (s.op->is(Operator::in_place)) return;
  const WithRandom random(RandomState{});
  record_again(s, values);
}

void NaiveTape::record_again(const Statement& s, const Tensors& values) {
  if (s.body.empty()) {
    record_operator(s, values);
    return;
  }
  Tensors local = values;
  for (std::size_t k = 0; k < s.in.size(); ++k) {
    roots_[at(s.parameters[k])] = root(s.in[k]);
    local[at(s.parameters[k])] = values[at(s.in[k])];
  }
  for (const Statement& inner : s.body) {
    record_again(inner, local);
    for (const Value v : inner.out) local[at(v)] = results_[at(v)];
  }
  roots_[at(s.out[0])] = root(s.body.back().out[0]);
  results_[at(s.out[0])] = results_[at(s.body.back().out[0])];
  if (!nodes_.empty() && nodes_.back().s == &s.body.back()) nodes_.back().opaque = true;
}

void NaiveTape::record_operator(const Statement& s, const Tensors& values) {
  Node node{&s, {}, {}};
  for (const Value v : s.in) {
    node.inputs.push_back(copy_of(values[at(v)]));
    if (tracked_[at(root(v))]) node.inputs.back().set_requires_grad();
  }
  const Tape tape;
  const Tensors outputs = run_simply(s, node.inputs);
  bool any = false;
  for (std::size_t k = 0; k < s.out.size(); ++k) {
    tracked_[at(s.out[k])] = outputs[k].requires_grad();
    results_[at(s.out[k])] = copy_of(outputs[k]);
    any = any || outputs[k].requires_grad();
    note_type(outputs[k].dtype());
  }
  if (any) nodes_.push_back(std::move(node));
}

void NaiveTape::compare_outputs(const Statement& s, const Tensors& in, const Tensors& out) {
  for (std::size_t k = 0; k < s.out.size(); ++k) {
    const Tensor& naive = results_[at(s.out[k])];
    double scale = largest(naive);
    for (const Tensor& x : in) scale = std::max(scale, largest(x));
    const double tolerance =
        is_floating(naive.dtype()) ? 64 * epsilon_of(naive.dtype()) * scale : 0;
    const Difference apart = compare(out[k], naive, {.relative = 0, .absolute = tolerance});
    if (!apart)
      throw Failure{"output", detail::concat("output ", k, " of ", s.op->name, ": ", apart.text)};
    // An operator that had nothing to do: both are one tensor.
    for (std::size_t i = 0; i < in.size() && s.body.empty(); ++i) {
      if (!out[k].same_as(in[i])) continue;
      roots_[at(s.out[k])] = root(s.in[i]);
      if (!nodes_.empty() && nodes_.back().s == &s) nodes_.pop_back();
      break;
    }
  }
}

/// Which values lead to something that is wanted.
std::vector<char> NaiveTape::find_needed(const std::vector<Value>& wanted) const {
  std::vector<char> needed(roots_.size(), 0);
  for (const Leaf& leaf : leaves_) needed[at(leaf.value)] = wanted.empty();
  for (const Value v : wanted) needed[at(root(v))] = 1;
  for (const Node& node : nodes_) {
    const bool leads =
        node.opaque || std::any_of(node.s->in.begin(), node.s->in.end(),
                                   [&](Value v) { return needed[at(root(v))] != 0; });
    for (const Value v : node.s->out) needed[at(v)] = needed[at(v)] || (leads && tracked_[at(v)]);
  }
  return needed;
}

void NaiveTape::walk(const WalkFrom& walk, const Tensor& upstream) {
  const std::vector<char> needed = find_needed(walk.with_respect_to);
  std::fill(gradients_.begin(), gradients_.end(), Estimate());
  seen_.clear();
  const Value loss = root(walk.loss);
  const bool is_leaf = std::any_of(leaves_.begin(), leaves_.end(),
                                   [&](const Leaf& leaf) { return leaf.value == loss; });
  if (!is_leaf || needed[at(loss)]) add(loss, {copy_of(upstream), perturb(upstream)});
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    for (const Value v : node->s->out) apply_hooks(v);
    undo(*node, needed);
  }
  for (const Leaf& leaf : leaves_) {
    apply_hooks(leaf.value);
    const Estimate& g = gradients_[at(leaf.value)];
    if (walk.with_respect_to.empty() && g.defined()) add_to(sums_[at(leaf.value)], g);
  }
}

void NaiveTape::undo(const Node& node, const std::vector<char>& needed) {
  const Statement& s = *node.s;
  std::vector<Value> wanted;
  Tensors inputs;
  for (std::size_t k = 0; k < s.in.size(); ++k) {
    const Value v = root(s.in[k]);
    if (!needed[at(v)] || !tracked_[at(v)]) continue;
    wanted.push_back(v);
    inputs.push_back(node.inputs[k]);
  }
  const bool reached =
      std::any_of(s.out.begin(), s.out.end(), [&](Value v) { return gradients_[at(v)].defined(); });
  if (!reached || wanted.empty()) return;
  std::vector<Estimate> contributions;
  {
    const WithRandom random(node.random);
    Tape tape;
    const Tensors outputs = run_simply(s, node.inputs);
    for (std::size_t k = 0; k < s.out.size(); ++k) {
      const Estimate& g = gradients_[at(s.out[k])];
      if (!g.defined()) continue;
      const Tensors value = tape.gradients(outputs[k], inputs, {g.value, true});
      const Tensors perturbed = tape.gradients(outputs[k], inputs, {g.perturbed, true});
      // What cancels inside of an operator is as large as what came in.
      double absolute =
          4 * epsilon_of(g.value.dtype()) * std::max(largest(g.value), largest(g.perturbed));
      // Where a fused operator multiplies inputs first and its composition does not.
      for (const Tensor& x : node.inputs) {
        if (s.op->composed && is_floating(x.dtype())) absolute *= std::max(1.0, largest(x));
      }
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        contributions.push_back({copy_of(value[i]), perturb(perturbed[i], absolute)});
      }
    }
  }
  for (std::size_t i = 0; i < contributions.size(); ++i) {
    add(wanted[i % wanted.size()], contributions[i]);
  }
}

void NaiveTape::add_to(Estimate& sum, const Estimate& contribution) {
  if (!sum.defined()) {
    sum = contribution;
    return;
  }
  sum = {sum.value + contribution.value, perturb(sum.perturbed + contribution.perturbed)};
}

void NaiveTape::add(Value value, const Estimate& contribution) {
  const auto leaf =
      std::find_if(leaves_.begin(), leaves_.end(), [&](const Leaf& l) { return l.value == value; });
  if (leaf == leaves_.end() || !leaf->grad_dtype) {
    add_to(gradients_[at(value)], contribution);
  } else {
    add_to(gradients_[at(value)], {contribution.value.to(*leaf->grad_dtype),
                                   contribution.perturbed.to(*leaf->grad_dtype)});
  }
}

void NaiveTape::apply_hooks(Value value) {
  Estimate& g = gradients_[at(value)];
  for (std::size_t k = 0; k < program_.hooks.size() && g.defined(); ++k) {
    if (root(program_.hooks[k].value) != value) continue;
    seen_.emplace_back(k, g);
    const Tensor changed = hooked(program_.hooks[k].kind, g.value);
    if (!changed.defined()) continue;
    g = {copy_of(changed), perturb(hooked(program_.hooks[k].kind, g.perturbed))};
  }
}

Estimate NaiveTape::gradient(Value value) const {
  return gradients_[at(root(value))];
}

void NaiveTape::zero_grad() {
  std::fill(sums_.begin(), sums_.end(), Estimate());
}

void NaiveTape::double_grads() {
  for (Estimate& sum : sums_) {
    if (sum.defined()) sum = {sum.value * 2, sum.perturbed * 2};
  }
}

Tensor NaiveTape::perturb(const Tensor& x, double absolute) {
  const NoGrad pause;
  const Tensor u = rand(x.shape(), f64, x.device(), noise_) * 2 - 1;
  const Tensor noise = where(u < 0, u - 1, u + 1) / 2;
  if (x.dtype() == f16) absolute += 0x1p-20;  // f16 has few small numbers
  return (x.detach().to(f64) * (1 + noise_of(x.dtype()) * noise) + absolute * noise).to(x.dtype());
}

Value NaiveTape::root(Value v) const {
  while (roots_[at(v)] != v) v = roots_[at(v)];
  return v;
}

}  // namespace quipu::programs
