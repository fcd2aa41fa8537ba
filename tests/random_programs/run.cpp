#include "run.h"

#include <algorithm>
#include <cmath>

namespace quipu::programs {
namespace {

double largest(const std::vector<double>& entries) {
  double most = 0;
  for (const double v : entries) most = std::isnan(v) ? v : std::max(most, std::abs(v));
  return most;
}

}  // namespace

Run::Run(const Program& program, Device device, NaiveTape* naive)
    : program_(program), device_(device), naive_(naive), last_use_(last_uses(program)) {
  values_.resize(static_cast<std::size_t>(program.values));
  start();
  for (std::size_t k = 0; k < program.statements.size(); ++k) execute(k);
  for (const WalkFrom& w : program.walks) {
    if (!refused_) walk(w);
  }
  check_handed_out();
}

void Run::start() {
  seed_generators(program_);
  for (const Leaf& leaf : program_.leaves) {
    value(leaf.value) = make(leaf, device_);
    if (naive_) naive_->leaf(leaf);
    add_hooks(leaf.value);
  }
}

void Run::execute(std::size_t index) {
  const Statement& s = program_.statements[index];
  Tensors in;
  for (const Value v : s.in) in.push_back(value(v));
  if (s.op->is(Operator::in_place)) {
    changed_saved_ = changed_saved_ || may_be_kept_.contains(&in[0].storage());
  }
  if (naive_) naive_->record(s, values_);
  Tensors out;
  {
    std::vector<std::unique_ptr<MemoryScope>> scopes;
    for (int k = 0; k < s.scopes; ++k) scopes.push_back(std::make_unique<MemoryScope>("scope"));
    out = run(s, values_);
    while (!scopes.empty()) scopes.pop_back();
  }
  if (naive_) naive_->compare_outputs(s, in, out);
  for (std::size_t k = 0; k < s.out.size(); ++k) value(s.out[k]) = out[k];
  for (const Value v : s.out) add_hooks(v);
  if (!s.op->is(Operator::in_place) && !s.op->is(Operator::keeps_nothing)) {
    for (const Value v : inputs_and_captured(s)) may_be_kept_.insert(&value(v).storage());
    for (const Tensor& o : out) may_be_kept_.insert(&o.storage());
  }
  if (!program_.drop_values) return;
  for (std::size_t v = 0; v < values_.size(); ++v) {
    if (last_use_[v] <= index) values_[v] = Tensor();
  }
}

void Run::add_hooks(Value v) {
  for (std::size_t k = 0; k < program_.hooks.size(); ++k) {
    const HookOn& hook = program_.hooks[k];
    if (hook.value != v) continue;
    value(v).add_hook([this, k, kind = hook.kind](const Tensor& gradient) {
      if (naive_) seen_.emplace_back(k, gradient.detach().clone());
      if (kind == HookOn::Kind::keep) {
        kept_.push_back(gradient);
        hand_out(detail::concat("the gradient that hook ", k, " kept"), gradient);
      }
      if (kind == HookOn::Kind::in_place) gradient.mul_(2);
      return kind == HookOn::Kind::in_place ? Tensor() : hooked(kind, gradient);
    });
  }
}

void Run::walk(const WalkFrom& w) {
  const Tensor& loss = value(w.loss);
  if (w.zero_grad_first) {
    for (const Leaf& leaf : program_.leaves) value(leaf.value).zero_grad();
    if (naive_) naive_->zero_grad();
  }
  if (w.double_grads_first) {
    const NoGrad pause;
    for (const Leaf& leaf : program_.leaves) {
      if (const Tensor g = value(leaf.value).grad(); g.defined()) g.mul_(2);
    }
    if (naive_) naive_->double_grads();
  }
  BackwardOptions options{.retain = w.retain};
  if (w.upstream) {
    options.upstream = make(*w.upstream, device_);
    hand_out("the upstream gradient", options.upstream);
  }
  seen_.clear();
  Tensors wanted, results;
  for (const Value v : w.with_respect_to) wanted.push_back(value(v));
  try {
    if (wanted.empty()) {
      tape_.backward(loss, options);
    } else {
      results = tape_.gradients(loss, wanted, options);
    }
  } catch (const Error& error) {
    if (!may_refuse(error.what())) throw;
    refused_ = true;
    return;
  }
  walked_without_retain_ = walked_without_retain_ || !w.retain;
  for (const Tensor& g : results) hand_out("a result of gradients()", g);
  if (!naive_) return;
  naive_->walk(w, w.upstream ? options.upstream : ones(loss.shape(), loss.dtype(), device_));
  compare_with_naive(w, results);
}

bool Run::may_refuse(const std::string& message) const {
  const auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
  return (changed_saved_ && says("was changed in place")) ||
         (walked_without_retain_ && says("was already undone"));
}

void Run::compare_with_naive(const WalkFrom& w, const Tensors& results) {
  for (const Leaf& leaf : program_.leaves) {
    if (!leaf.requires_grad) continue;
    compare(detail::concat("x", leaf.value, ".grad()"), value(leaf.value).grad(),
            naive_->sum(leaf.value));
  }
  for (std::size_t k = 0; k < results.size(); ++k) {
    compare(detail::concat("result ", k, " of gradients()"), results[k],
            naive_->gradient(w.with_respect_to[k]));
  }
  for (std::size_t k = 0; k < program_.hooks.size(); ++k) {
    const auto find = [&](const auto& list) {
      return std::find_if(list.begin(), list.end(),
                          [&](const auto& entry) { return entry.first == k; });
    };
    const auto ours = find(seen_);
    const auto naive = find(naive_->seen());
    compare(detail::concat("the gradient that hook ", k, " saw"),
            ours == seen_.end() ? Tensor() : ours->second,
            naive == naive_->seen().end() ? Estimate() : naive->second);
  }
}

/// Fails where ours is further from the naive one than roundings explain.
void Run::compare(const std::string& what, const Tensor& ours, const Estimate& naive) {
  if (!ours.defined() && !naive.defined()) return;
  const std::vector<double> want =
      naive.defined() ? naive.value.to_vector() : std::vector<double>();
  const double scale = largest(want);
  if (!(scale < 1e25) || (naive.defined() && naive.value.dtype() == f16 && scale > 1e4)) {
    overflowed_ = true;
    return;
  }
  // A gradient that is left out is zero.
  if (!ours.defined() || !naive.defined()) {
    const double missing = ours.defined() ? largest(ours.to_vector()) : scale;
    if (missing == 0) return;
    throw Failure{ours.defined() ? "extra gradient" : "missing gradient",
                  detail::concat(what, ours.defined() ? " should not be there" : " is not there")};
  }
  if (ours.shape() != naive.value.shape() || ours.dtype() != naive.value.dtype()) {
    throw Failure{"gradient", detail::concat(what, " is ", ours.dtype(), ours.shape(), ", not ",
                                             naive.value.dtype(), naive.value.shape())};
  }
  const std::vector<double> got = ours.to_vector(), perturbed = naive.perturbed.to_vector();
  double noise = naive_->resolution() * scale;
  for (std::size_t i = 0; i < want.size(); ++i) {
    noise = std::max(noise, std::abs(perturbed[i] - want[i]));
  }
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::abs(got[i] - want[i]) <= 16 * noise) continue;
    throw Failure{"gradient", detail::concat(what, " entry ", i, " is ", got[i], " instead of ",
                                             want[i], ", roundings explain ", 16 * noise)};
  }
}

void Run::hand_out(const std::string& what, const Tensor& gradient) {
  if (naive_) handed_out_.push_back({what, gradient, gradient.detach().clone()});
}

void Run::check_handed_out() const {
  for (const HandedOut& h : handed_out_) {
    const Difference apart =
        quipu::compare(h.gradient, h.copy, {.relative = 0, .absolute = 0, .equal_nan = true});
    if (!apart)
      throw Failure{"changed later",
                    h.what + " was changed after it was handed out: " + apart.text};
  }
}

std::vector<double> Run::gradient(Value leaf) const {
  const Tensor& g = values_[static_cast<std::size_t>(leaf)].grad();
  return g.defined() ? g.to_vector() : std::vector<double>();
}

}  // namespace quipu::programs
