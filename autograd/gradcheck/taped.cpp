#include "quipu/autograd/gradcheck/taped.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quipu/autograd/gradcheck/differences.h"
#include "quipu/autograd/tape.h"

namespace quipu::detail {

std::vector<double> random_weights(std::uint64_t seed, std::size_t count) {
  std::vector<double> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto words = philox(seed, i);
    const double size = 1 + 0.125 * (words[0] * 0x1p-32);
    result[i] = words[1] % 2 == 0 ? size : -size;
  }
  return result;
}

Dims unravel(std::size_t position, const Shape& shape) {
  Dims index = shape;
  auto rest = static_cast<std::int64_t>(position);
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = rest % shape[d];
    rest /= shape[d];
  }
  return index;
}

namespace {

Tensor as_output(const std::vector<double>& values, const Tensor& o) {
  return from(values, o.shape(), f64, o.device());
}

}  // namespace

Taped::Taped(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
             const GradcheckOptions& options)
    : f_(f), inputs_(inputs), options_(options) {
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].requires_grad()) checked_.push_back(k);
  }
  first_ = run();
  upstream_ = random_weights(options.seed, static_cast<std::size_t>(first_.output.numel()));
  for (const Tensor& d : first_.gradients) gradients_.push_back(d.to_vector());
}

Problem Taped::problem(const Tensor& without_tape) const {
  Problem found = problem_with_runs(without_tape);
  if (found.text.empty()) found = problem_with_zero_upstream();
  if (found.text.empty()) found = problem_with_adding();
  if (found.text.empty()) found = problem_with_sharing();
  return found;
}

// Fresh leaves with the values and strides of the inputs; what is not checked is passed as it is.
std::vector<Tensor> Taped::leaves() const {
  std::vector<Tensor> result = inputs_;
  for (const std::size_t k : checked_) {
    result[k] = copy_with_strides(inputs_[k]);
    result[k].set_requires_grad();
  }
  return result;
}

// An output that depends on no leaf gives zeros: the numbers decide whether that is right.
std::vector<Tensor> Taped::walk(Tape& tape, const std::vector<Tensor>& arguments, const Tensor& o,
                                const Values& upstream, bool retain) const {
  std::vector<Tensor> wanted;
  for (const std::size_t k : checked_) wanted.push_back(arguments[k]);
  if (o.extra()) return tape.gradients(o, wanted, {as_output(upstream, o), retain});
  for (Tensor& x : wanted) x = zeros(x.shape(), f64, x.device());
  return wanted;
}

Taped::Run Taped::run() const {
  const std::vector<Tensor> arguments = leaves();
  std::vector<Tensor> before;
  for (const Tensor& x : arguments) before.push_back(x.detach().clone());
  Run result;
  Tape tape;
  const Tensor o = evaluate(f_, arguments);
  result.output = o.detach().clone();
  const Values upstream = random_weights(options_.seed, static_cast<std::size_t>(o.numel()));
  result.gradients = walk(tape, arguments, o, upstream, false);
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    if (!same_bits(arguments[k].detach(), before[k])) result.changed_input = static_cast<int>(k);
  }
  return result;
}

Problem Taped::problem_with_runs(const Tensor& without_tape) const {
  if (const int k = first_.changed_input; k >= 0)
    return {fmt::format("f changed input {}", k), k, {}};
  for (std::size_t c = 0; c < checked_.size(); ++c) {
    const Tensor &x = inputs_[checked_[c]], &d = first_.gradients[c];
    if (d.shape() == x.shape() && d.dtype() == f64 && d.device() == x.device()) continue;
    return {
        detail::concat("the gradient of input ", checked_[c], " is ", d.dtype(), d.shape(), " on ",
                       d.device(), ", but the input is f64", x.shape(), " on ", x.device()),
        static_cast<int>(checked_[c]),
        {}};
  }
  const Run second = run();
  if (!same_bits(first_.output, second.output)) {
    return {"f is not deterministic: it gave different outputs in two runs", -1, {}};
  }
  if (!same_bits(first_.output, without_tape)) {
    return {"f gave different outputs with and without a tape", -1, {}};
  }
  for (std::size_t c = 0; c < checked_.size(); ++c) {
    if (same_bits(first_.gradients[c], second.gradients[c])) continue;
    return {fmt::format("two runs gave different gradients of input {}", checked_[c]),
            static_cast<int>(checked_[c]),
            {}};
  }
  return {};
}

Problem Taped::problem_with_zero_upstream() const {
  Tape tape;
  const std::vector<Tensor> arguments = leaves();
  const std::vector<Tensor> d =
      walk(tape, arguments, evaluate(f_, arguments), Values(upstream_.size(), 0.0), false);
  for (std::size_t c = 0; c < checked_.size(); ++c) {
    const Values values = d[c].to_vector();
    const auto bad = std::find_if(values.begin(), values.end(), [](double v) { return !(v == 0); });
    if (bad == values.end()) continue;
    const Dims index = unravel(static_cast<std::size_t>(bad - values.begin()), d[c].shape());
    return {fmt::format("a zero upstream gives the gradient {} for input {} {}", *bad, checked_[c],
                        index_text(index)),
            static_cast<int>(checked_[c]), index};
  }
  return {};
}

// Backward rules add into the gradient that is there; one that overwrites it shows here.
Problem Taped::problem_with_adding() const {
  Tape tape;
  const std::vector<Tensor> arguments = leaves();
  const Tensor o = evaluate(f_, arguments);
  if (!o.extra()) return {};
  std::vector<Values> held;
  for (const std::size_t k : checked_) {
    const Tensor& x = arguments[k];
    held.push_back(random_weights(options_.seed + 1 + k, static_cast<std::size_t>(x.numel())));
    x.set_grad(from(held.back(), x.shape(), f64, x.device()));
  }
  tape.backward(o, {as_output(upstream_, o), false});
  for (std::size_t c = 0; c < checked_.size(); ++c) {
    const Values sum = arguments[checked_[c]].grad().to_vector();
    double largest = 1;
    for (const double g : gradients_[c]) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double expected = held[c][i] + gradients_[c][i];
      if (std::isnan(expected) || std::abs(sum[i] - expected) <= options_.tolerance * largest)
        continue;
      const Dims index = unravel(i, inputs_[checked_[c]].shape());
      return {
          fmt::format("the gradient of input {} {} is not added to the one that was there: {} + "
                      "{} became {}",
                      checked_[c], index_text(index), held[c][i], gradients_[c][i], sum[i]),
          static_cast<int>(checked_[c]), index};
    }
  }
  return {};
}

std::vector<Taped::Values> Taped::jacobian() const {
  std::vector<Values> rows;
  Tape tape;
  const std::vector<Tensor> arguments = leaves();
  const Tensor o = evaluate(f_, arguments);
  Values one_hot(upstream_.size(), 0.0);
  for (std::size_t j = 0; j < one_hot.size(); ++j) {
    one_hot[j] = 1;
    rows.emplace_back();
    for (const Tensor& d : walk(tape, arguments, o, one_hot, true)) {
      const Values values = d.to_vector();
      rows.back().insert(rows.back().end(), values.begin(), values.end());
    }
    one_hot[j] = 0;
  }
  return rows;
}

}  // namespace quipu::detail
