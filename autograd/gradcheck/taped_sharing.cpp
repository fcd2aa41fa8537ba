// gradcheck's look at the graph around f: inputs and outputs with several uses, a scalar loss, and
// the operators of f in other orders. Operators share gradient buffers in ways that depend on all
// three, so f alone, under an upstream gradient that the caller holds, would not show a mistake.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "quipu/autograd/gradcheck/differences.h"
#include "quipu/autograd/gradcheck/taped.h"
#include "quipu/autograd/walk.h"
#include "quipu/core/devices.h"
#include "quipu/core/dispatch/kernels.h"

namespace quipu {
using namespace detail;
namespace {

/// Hands its gradient on to all inputs, as a sum does.
struct PassRule {
  int inputs;
  void backward(const Tensor& d_o, Grads& d) const {
    for (int i = 0; i < inputs; ++i) d.pass(i, d_o);
  }
};

/// The same values and strides.
Tensor copied(const Tensor& x) {
  const OpScope op("gradcheck");
  return tie(copy_with_strides(x), {x}, PassRule{1});
}

/// A further use of x, and the tape's side of a + b; nobody looks at the values.
Tensor used(const Tensor& x) {
  const OpScope op("gradcheck");
  return tie(zeros(x.shape(), f64, x.device()), {x}, PassRule{1});
}
Tensor joined(const Tensor& a, const Tensor& b) {
  const OpScope op("gradcheck");
  return tie(zeros(a.shape(), f64, a.device()), {a, b}, PassRule{2});
}

/// A loss of which the gradients are given numbers.
struct GivenRule {
  std::vector<Tensor> gradients;
  void backward(const Tensor&, Grads& d) const {
    for (std::size_t i = 0; i < gradients.size(); ++i) d.add(static_cast<int>(i), gradients[i]);
  }
};

class Loss {
 public:
  void add(const Tensor& x, const std::vector<double>& weights, double scale) {
    std::vector<double> scaled = weights;
    for (double& w : scaled) w *= scale;
    inputs_.push_back(x);
    rule_.gradients.push_back(from(scaled, x.shape(), f64, x.device()));
  }
  Tensor tied() {
    const OpScope op("gradcheck");
    const Tensor o = zeros({}, f64, inputs_[0].device());
    tie_all({&o, 1}, inputs_, std::move(rule_));
    return o;
  }

 private:
  std::vector<Tensor> inputs_;
  GivenRule rule_;
};

/// An order of the knots in which each stands behind those that it needs: of those that could be
/// next, the latest (seed 0) or a random one.
std::vector<std::size_t> another_order(const TapeState& tape, std::uint64_t seed) {
  const std::size_t count = tape.entries.size();
  std::vector<std::size_t> missing(count, 0);
  std::vector<std::vector<std::size_t>> users(count);
  std::vector<std::size_t> ready, order;
  for (std::size_t k = 0; k < count; ++k) {
    for (const Edge& edge : tape.entries[k].knot->inputs) {
      if (edge.kind != Edge::Kind::knot) continue;
      ++missing[k];
      users[edge.knot].push_back(k);
    }
    if (missing[k] == 0) ready.push_back(k);
  }
  while (!ready.empty()) {
    const auto next = seed == 0 ? std::max_element(ready.begin(), ready.end())
                                : ready.begin() + philox(seed, order.size())[0] % std::ssize(ready);
    order.push_back(*next);
    ready.erase(next);
    for (const std::size_t user : users[order.back()]) {
      if (--missing[user] == 0) ready.push_back(user);
    }
  }
  return order;
}

void reorder(TapeState& tape, const std::vector<std::size_t>& order) {
  std::vector<TapeState::Entry> old = std::exchange(tape.entries, {});
  std::vector<std::size_t> place(old.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  tape.slots = 0;
  for (const std::size_t k : order) {
    Knot& knot = *old[k].knot;
    for (Edge& edge : knot.inputs) {
      if (edge.kind == Edge::Kind::knot) edge.knot = place[edge.knot];
    }
    for (const OutputInfo& o : knot.outputs) static_cast<AutogradMeta&>(*o.extra).knot = place[k];
    tape.entries.push_back({std::move(old[k].knot), old[k].name, tape.slots});
    tape.slots += knot.outputs.size();
  }
}

/// Gradients of a loss, by a walk that leaves the tape as it is.
std::vector<Tensor> gradients_of(const Tensor& loss, const std::vector<Tensor>& wanted,
                                 TapeState& tape) {
  Walk walk(tape, true);
  walk.request(wanted);
  const Tensor one = new_gradient({}, f64, loss.device());
  fill_kernel(one, 1);
  walk.run(loss, GradientBuffer::own(one));
  std::vector<Tensor> gradients;
  for (const Tensor& x : wanted) gradients.push_back(walk.result(x));
  return gradients;
}

/// One tensor and the gradient that it must get.
struct Expected {
  std::string what;
  int input;
  Tensor tensor;
  std::vector<double> values;
};

Problem compare_all(const std::vector<Expected>& expected, const Tensor& loss, TapeState& tape,
                    double tolerance, const char* order) {
  std::vector<Tensor> wanted;
  for (const Expected& e : expected) wanted.push_back(e.tensor);
  const std::vector<Tensor> gradients = gradients_of(loss, wanted, tape);
  for (std::size_t n = 0; n < expected.size(); ++n) {
    const Expected& e = expected[n];
    const std::vector<double> got = gradients[n].to_vector();
    double largest = 1;
    for (const double g : e.values) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double difference = std::abs(got[i] - e.values[i]);
      if (std::isnan(e.values[i]) || difference <= tolerance * largest) continue;
      const Dims index = unravel(i, e.tensor.shape());
      return {fmt::format("with several uses of inputs and output, {}, the gradient of {} {} is "
                          "{}, but that of its uses adds up to {}",
                          order, e.what, index_text(index), got[i], e.values[i]),
              e.input, index};
    }
  }
  return {};
}

}  // namespace

Problem Taped::problem_with_sharing() const {
  const TapeOwner owner;
  std::vector<Expected> leaves_only, everything;  // gradients inside the graph are held, too
  Tensor loss;
  {
    const RecordOn on(owner.state);
    const std::vector<Tensor> leaves = this->leaves();
    std::vector<Tensor> arguments = leaves, early;
    for (const std::size_t k : checked_) {
      arguments[k] = copied(leaves[k]);
      early.push_back(used(arguments[k]));
    }
    const Tensor o = evaluate(f_, arguments);
    if (!o.extra()) return {};
    Loss sum;  // the fractions of the upstream add up to it exactly
    sum.add(o, upstream_, 0.25);
    sum.add(used(o), upstream_, 0.25);
    sum.add(used(o), upstream_, 0.5);
    const bool is_input = std::any_of(arguments.begin(), arguments.end(),
                                      [&](const Tensor& x) { return x.same_as(o); });
    if (!is_input) everything.push_back({"the output", -1, o, upstream_});
    for (std::size_t c = 0; c < checked_.size(); ++c) {
      const std::size_t k = checked_[c];
      const Tensor late = used(arguments[k]);
      const Values weights = random_weights(options_.seed + 0x2000 + k, gradients_[c].size());
      sum.add(early[c], weights, 1);
      sum.add(joined(early[c], late), weights, 0.5);
      sum.add(late, weights, 0.25);
      Values total = gradients_[c];
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += (1 + 2 * 0.5 + 0.25) * weights[i];
      const std::string what = fmt::format("input {}", k);
      leaves_only.push_back({what, static_cast<int>(k), leaves[k], total});
      everything.push_back({what + " inside the graph", static_cast<int>(k), arguments[k], total});
    }
    loss = sum.tied();
  }
  const char* const orders[] = {"in the order of recording", "operators as late as possible",
                                "operators in a random order", "operators in another random order"};
  const std::uint64_t count = is_emulated(loss.device()) ? 2 : std::size(orders);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i > 0) reorder(*owner.state, another_order(*owner.state, i - 1));
    for (const auto& expected : {std::cref(leaves_only), std::cref(everything)}) {
      const Problem found =
          compare_all(expected, loss, *owner.state, options_.tolerance, orders[i]);
      if (!found.text.empty()) return found;
    }
  }
  return {};
}

}  // namespace quipu
