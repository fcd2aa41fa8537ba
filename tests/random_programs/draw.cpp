// The generator. It runs the program along on the CPU while it draws it, so that it knows shapes,
// types and values, and takes back what an operator refuses or what grows too large.
#include "draw.h"

#include <algorithm>
#include <cmath>

namespace quipu::programs {
using namespace detail;
namespace {

constexpr std::int64_t largest_numel = 200;
constexpr double largest_entry = 12;

/// Inputs at the end that were drawn but do not stand in the operator's text.
void drop_unused_inputs(Statement& s) {
  const std::string text = s.op->text;
  if (text.find("in,") != std::string::npos) return;  // all of them
  const auto is_used = [&](std::size_t k) {
    return text.find("in[" + std::to_string(k) + "]") != std::string::npos;
  };
  while (!s.in.empty() && !is_used(s.in.size() - 1)) s.in.pop_back();
}

}  // namespace

Draw::Draw(std::uint64_t seed) : random_(seed), statements_(&program_.statements) {
  program_.seed = seed;
  constexpr DType types[] = {f64, f64, f64, f64, f64, f64, f32, f32, bf16, f16};
  dtype_ = types[below(10)];
  smooth_ = dtype_ == f64 && chance(0.4);
  in_place_ = !smooth_ && chance(0.15);
  light_ = chance(0.5);
  program_.drop_values = chance(0.3);
}

const Operator* named(const char* name) {
  return &*std::find_if(operators().begin(), operators().end(),
                        [&](const Operator& o) { return std::string(o.name) == name; });
}

Program Draw::program() {
  seed_generators(program_);
  const Shape first = shape(between(0, 3));
  for (int k = between(1, 4); k > 0; --k) {
    like(light_ || chance(0.3) ? first : shape(between(0, 3)), dtype_);
  }
  const auto length = static_cast<std::size_t>(chance(0.3) ? between(5, 16) : between(10, 50));
  for (int tries = 0; statements_->size() < length && tries < 600; ++tries) append_some();
  add_losses();
  add_hooks();
  add_walks();
  program_.values = static_cast<Value>(values_.size());
  return std::move(program_);
}

Value Draw::find(const std::function<bool(const Tensor&)>& fits) {
  std::vector<Value> fitting, unused, recent;
  for (const Value v : visible_) {
    if (!fits(at(v))) continue;
    fitting.push_back(v);
    if (uses_[static_cast<std::size_t>(v)] == 0) unused.push_back(v);
  }
  if (fitting.empty()) return -1;
  recent.assign(fitting.end() - std::min<std::ptrdiff_t>(4, std::ssize(fitting)), fitting.end());
  if (chance(0.35) && !unused.empty()) return one_of(unused);
  return one_of(chance(0.5) ? recent : fitting);
}

Value Draw::some(int dims) {
  return find([&](const Tensor& x) { return is_float(x) && x.dim() >= dims; });
}

Value Draw::like(const Shape& wanted, DType dtype) {
  if (chance(0.7)) {
    const Value v =
        find([&](const Tensor& x) { return x.dtype() == dtype && x.shape() == wanted; });
    if (v >= 0) return v;
  }
  if (chance(0.6)) {
    const Value v =
        find([&](const Tensor& x) { return x.dtype() == dtype && x.numel() == numel(wanted); });
    if (v >= 0 && append({.op = named("reshape"), .in = {v}, .out = {}, .shape = wanted})) {
      return statements_->back().out[0];
    }
  }
  Leaf leaf{.shape = wanted, .dtype = dtype};
  if (chance(0.4)) leaf.content = Content::positive;
  if (chance(0.3)) leaf.layout = some_layout(wanted);
  leaf.requires_grad = chance(0.85);
  if (leaf.requires_grad && is_reduced(dtype) && chance(0.3)) leaf.grad_dtype = f32;
  return add_leaf(leaf);
}

Value Draw::constant(const Shape& shape, DType dtype, Content content, std::int64_t bound) {
  return add_leaf({.shape = shape, .dtype = dtype, .content = content, .bound = bound});
}

Value Draw::index(const Shape& shape, std::int64_t bound) {
  const Value v = chance(0.5) ? find([&](const Tensor& x) {
    if (x.dtype() != i64 || x.shape() != shape) return false;
    const std::vector<double> entries = x.to_vector();
    return std::all_of(entries.begin(), entries.end(),
                       [&](double e) { return e < static_cast<double>(bound); });
  })
                              : -1;
  return v >= 0 ? v : constant(shape, chance(0.5) ? i64 : i32, Content::index, bound);
}

Value Draw::mask(const Shape& shape) {
  const Value v = find([&](const Tensor& x) { return x.dtype() == boolean && x.shape() == shape; });
  return v >= 0 ? v : constant(shape, boolean, Content::mask);
}

Shape Draw::beside(const Shape& shape) {
  Shape other = shape;
  if (chance(0.4)) return other;
  while (!other.empty() && chance(0.3)) other.erase(0);
  for (int d = 0; d < other.size(); ++d) {
    if (chance(0.3)) other[d] = 1;
  }
  return other;
}

Shape Draw::shape(int dims) {
  Shape drawn;
  for (int d = 0; d < dims; ++d) drawn.push_back(size());
  return drawn;
}

Value Draw::add_leaf(Leaf leaf) {
  leaf.value = static_cast<Value>(values_.size());
  leaf.seed = leaf_seed();
  values_.push_back(make(leaf, {}));
  program_.leaves.push_back(leaf);
  uses_.push_back(0);
  visible_.push_back(leaf.value);
  return leaf.value;
}

/// Runs it along and keeps it if it can be run and its results are neither large nor many.
bool Draw::append(Statement s) {
  Tensors outputs;
  if (s.body.empty()) drop_unused_inputs(s);
  const Tensor target = s.op->is(Operator::in_place) ? at(s.in[0]) : Tensor();
  const Tensor before = target.defined() ? target.detach().clone() : Tensor();
  try {
    outputs = s.body.empty() ? run(s, values_) : Tensors{at(s.body.back().out[0])};
  } catch (const Error&) {
    return false;
  }
  if (!acceptable(outputs)) {
    const NoGrad pause;
    if (target.defined()) target.copy_from(before);
    return false;
  }
  if (chance(0.1)) s.scopes = between(1, 2);
  for (const Value v : s.in) ++uses_[static_cast<std::size_t>(v)];
  if (!target.defined()) {
    for (const Tensor& o : outputs) {
      s.out.push_back(static_cast<Value>(values_.size()));
      visible_.push_back(s.out.back());
      values_.push_back(o);
      uses_.push_back(0);
    }
  }
  statements_->push_back(std::move(s));
  return true;
}

bool Draw::acceptable(const Tensors& outputs) const {
  std::int64_t entries = 0;
  for (const Tensor& o : outputs) {
    entries += o.numel();
    if (o.dim() > 5 || entries > largest_numel || (smooth_ && is_float(o) && o.dtype() != f64))
      return false;
    for (const double v : o.to_vector()) {
      if (!(std::abs(v) <= largest_entry)) return false;
    }
  }
  return true;
}

bool Draw::append_some() {
  static const std::vector<const Operator*> by_weight = [] {
    std::vector<const Operator*> list;
    for (const Operator& op : operators()) list.insert(list.end(), op.weight, &op);
    return list;
  }();
  Statement s{.op = one_of(by_weight), .in = {}, .out = {}};
  if (smooth_ && s.op->is(Operator::kink)) return false;
  if (light_ && !s.op->is(Operator::keeps_nothing) && chance(0.8)) return false;
  if (s.op->is(Operator::in_place) && (!in_place_ || depth_ > 0)) return false;
  // What is taken back draws no random numbers, so that those of the program are the same.
  const RandomState random;
  bool done = false;
  try {
    done = s.op->draw(*this, s) && append(std::move(s));
  } catch (const Error&) {
    // An empty tensor has no index.
  }
  if (!done) random.restore();
  return done;
}

bool Draw::body(Statement& s) {
  if (depth_ == 2) return false;
  for (int k = between(1, 3); k > 0; --k) s.in.push_back(some());
  if (s.in.back() < 0) return false;
  // A body sees its parameters and all leaves, and may capture what was computed outside.
  std::vector<Value> outside = std::move(visible_);
  std::vector<Statement>* const outer = std::exchange(statements_, &s.body);
  ++depth_;
  if (chance(0.3)) {
    visible_ = outside;
  } else {
    visible_.clear();
    for (const Leaf& leaf : program_.leaves) visible_.push_back(leaf.value);
  }
  for (const Value v : s.in) {
    s.parameters.push_back(static_cast<Value>(values_.size()));
    visible_.push_back(s.parameters.back());
    values_.push_back(at(v));
    uses_.push_back(0);
  }
  const std::size_t leaves = program_.leaves.size(),
                    length = static_cast<std::size_t>(between(1, 5));
  // It ends with something that has a gradient.
  const auto ends = [&] {
    if (s.body.size() < length || s.body.back().out.size() != 1) return false;
    return at(s.body.back().out[0]).requires_grad();
  };
  for (int tries = 0; !ends() && tries < 40; ++tries) append_some();
  const bool done = ends();
  --depth_;
  statements_ = outer;
  visible_ = std::move(outside);
  for (std::size_t k = leaves; k < program_.leaves.size(); ++k) {
    visible_.push_back(program_.leaves[k].value);
  }
  return done;
}

Program draw_program(std::uint64_t seed) {
  return Draw(seed).program();
}

}  // namespace quipu::programs
