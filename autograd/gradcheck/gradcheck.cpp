#include "quipu/autograd/gradcheck/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "quipu/autograd/gradcheck/differences.h"
#include "quipu/autograd/gradcheck/taped.h"
#include "quipu/core/context.h"
#include "quipu/core/devices.h"

namespace quipu {
using namespace detail;
namespace {

using Values = std::vector<double>;

void check_inputs(const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  check(options.tolerance > 0 && options.step > 0, "tolerance and step must be positive");
  check(options.directions > 0, "at least one direction is needed");
  bool any = false;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Tensor& x = inputs[k];
    check(x.defined(), "input ", k, " is undefined");
    check(!x.device().is_meta(), "input ", k, " is on ", x.device(),
          ", which computes nothing; use the device that it imitates");
    if (!x.requires_grad()) continue;
    any = true;
    check(x.dtype() == f64, "input ", k, " is ", x.dtype(),
          ", but differences need f64; make it with to(f64)");
    for (int d = 0; d < x.dim(); ++d) {
      check(x.size(d) < 2 || x.strides()[d] != 0, "input ", k,
            " repeats its elements (stride 0 in ", "dimension ", d,
            "), so they cannot be moved one by one; expand inside f instead");
    }
  }
  check(any, "no input requires a gradient; call set_requires_grad() on those to check");
}

// One figure of the tape beside the one of the differences.
struct Item {
  std::size_t input = 0;
  std::size_t position = 0;  // in the input; the number of the direction in direction mode
  std::int64_t output = -1;  // position in the output; -1: all outputs, weighted by the upstream
  double analytic = 0;
  Derivative numeric;

  double error() const { return std::abs(analytic - numeric.value); }
  double roughness() const {  // NaN if one of them is
    return numeric.roughness <= numeric.error ? numeric.error : numeric.roughness;
  }
};

enum class Finding { agrees, rough, wrong };

struct Verdict {
  Finding finding = Finding::agrees;
  double badness = -1;  // times the tolerance; NaN counts as infinite
  double scale = 0;     // what the tolerance is a part of
  Item item;
};

// The worst of some items whose tolerance is a part of the largest derivative among them. Where
// that is no more than rounding of f, the rounding itself is what is allowed.
Verdict judge(const std::vector<Item>& items, double tolerance, double noise) {
  double scale = 0;
  for (const Item& item : items) scale = std::max(scale, std::abs(item.numeric.value));
  if (scale <= noise) scale = noise / tolerance;
  Verdict worst{Finding::agrees, -1, scale, {}};
  for (const Item& item : items) {
    const double allowed = tolerance * scale;
    const Finding finding = !(item.roughness() <= allowed) ? Finding::rough
                            : !(item.error() <= allowed)   ? Finding::wrong
                                                           : Finding::agrees;
    double badness = finding == Finding::rough ? item.roughness() : item.error();
    badness = allowed > 0 ? badness / allowed : badness == 0 ? 0 : INFINITY;
    if (std::isnan(badness)) badness = INFINITY;
    if (finding > worst.finding || (finding == worst.finding && badness > worst.badness)) {
      worst = {finding, badness, scale, item};
    }
  }
  return worst;
}

class Check {
 public:
  Check(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
        const GradcheckOptions& options)
      : inputs_(inputs), options_(options), taped_(f, inputs, options), probe_(f, inputs) {}
  GradcheckResult run();

 private:
  Problem problem_with_known_kinks() const;
  void compare_jacobian();
  void compare_directions();
  Item item_along(std::size_t c, const Direction& direction, double step);
  Item trace(std::size_t c, Direction direction, Finding finding);
  void keep_worst(const Verdict& verdict);
  void write_report();

  // Steps are relative to the size of the entry.
  double size_of_entry(std::size_t input, std::size_t i) const {
    return std::max(1.0, std::abs(probe_.values(input)[i]));
  }

  const std::vector<Tensor>& inputs_;
  const GradcheckOptions& options_;
  Taped taped_;  // before the probe, so that what the tape refuses is said by the tape
  Probe probe_;
  Verdict worst_;
  GradcheckResult result_;
};

GradcheckResult Check::run() {
  Problem problem = taped_.problem(probe_.center());
  if (problem.text.empty()) problem = problem_with_known_kinks();
  if (!problem.text.empty()) {
    result_.report = "gradcheck failed: " + problem.text;
    result_.input = problem.input;
    result_.index = problem.index;
    return result_;
  }
  std::size_t entries = 0;
  for (const Values& g : taped_.gradients()) entries += g.size() * taped_.upstream().size();
  if (entries <= static_cast<std::size_t>(options_.max_jacobian)) {
    compare_jacobian();
  } else {
    compare_directions();
  }
  write_report();
  return result_;
}

Problem Check::problem_with_known_kinks() const {
  if (!options_.kink_distance) return {};
  for (const std::size_t k : taped_.checked()) {
    const Values& x = probe_.values(k);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double distance = options_.kink_distance(static_cast<int>(k), x[i]);
      const double step = options_.step * size_of_entry(k, i);
      if (distance > step) continue;
      const Dims index = unravel(i, inputs_[k].shape());
      return {fmt::format("input {} {} is refused: {} is {} from a kink, nearer than the step {}",
                          k, index_text(index), x[i], distance, step),
              static_cast<int>(k), index};
    }
  }
  return {};
}

void Check::compare_jacobian() {
  const std::vector<Values> rows = taped_.jacobian();
  std::size_t column = 0;
  for (std::size_t c = 0; c < taped_.checked().size(); ++c) {
    const std::size_t k = taped_.checked()[c];
    const Values ones(taped_.gradients()[c].size(), 1.0);
    std::vector<Item> items, weighted;
    for (std::size_t i = 0; i < ones.size(); ++i, ++column) {
      const double step = options_.step * size_of_entry(k, i);
      const auto numeric = probe_.along({k, ones, i, i + 1}, step, {});
      Item sum{k, i, -1, taped_.gradients()[c][i], {}};
      for (std::size_t j = 0; j < numeric.size(); ++j) {
        items.push_back({k, i, static_cast<std::int64_t>(j), rows[j][column], numeric[j]});
        sum.numeric.value += taped_.upstream()[j] * numeric[j].value;
        sum.numeric.error += std::abs(taped_.upstream()[j]) * numeric[j].error;
        sum.numeric.roughness += std::abs(taped_.upstream()[j]) * numeric[j].roughness;
      }
      weighted.push_back(sum);
    }
    keep_worst(judge(items, options_.tolerance, probe_.noise(options_.step, {})));
    keep_worst(judge(weighted, options_.tolerance, probe_.noise(options_.step, taped_.upstream())));
    result_.entries += static_cast<std::int64_t>(items.size());
  }
}

Item Check::item_along(std::size_t c, const Direction& direction, double step) {
  double analytic = 0;
  for (std::size_t i = direction.begin; i < direction.end; ++i) {
    analytic += taped_.gradients()[c][i] * direction.values[i];
  }
  return {direction.input, 0, -1, analytic, probe_.along(direction, step, taped_.upstream())[0]};
}

void Check::compare_directions() {
  for (std::size_t c = 0; c < taped_.checked().size(); ++c) {
    const std::size_t k = taped_.checked()[c], size = taped_.gradients()[c].size();
    std::vector<Item> items;
    std::vector<Values> values;
    for (int n = 0; n < options_.directions && size > 0; ++n) {
      values.push_back(
          random_weights(options_.seed + 0x1000 * (k + 1) + static_cast<unsigned>(n), size));
      for (std::size_t i = 0; i < size; ++i) values.back()[i] *= size_of_entry(k, i);
      items.push_back(item_along(c, {k, values.back(), 0, size}, options_.step));
      items.back().position = values.size() - 1;
    }
    result_.directions += static_cast<std::int64_t>(items.size());
    Verdict verdict =
        judge(items, options_.tolerance, probe_.noise(options_.step, taped_.upstream()));
    if (verdict.finding != Finding::agrees) {
      verdict.item = trace(c, {k, values[verdict.item.position], 0, size}, verdict.finding);
    }
    keep_worst(verdict);
  }
}

// Halves a direction that failed until one entry is left: the one to name.
Item Check::trace(std::size_t c, Direction direction, Finding finding) {
  const auto badness = [&](std::size_t begin, std::size_t end) {
    const Item item = item_along(c, {direction.input, direction.values, begin, end}, options_.step);
    const double bad = finding == Finding::rough ? item.roughness() : item.error();
    return std::isnan(bad) ? INFINITY : bad;
  };
  while (direction.end - direction.begin > 1) {
    const std::size_t middle = direction.begin + (direction.end - direction.begin) / 2;
    if (badness(direction.begin, middle) >= badness(middle, direction.end)) {
      direction.end = middle;
    } else {
      direction.begin = middle;
    }
  }
  const std::size_t i = direction.begin;
  const Values ones(direction.end, 1.0);
  Item item = item_along(c, {direction.input, ones, i, i + 1},
                         options_.step * size_of_entry(direction.input, i));
  item.position = i;
  return item;
}

void Check::keep_worst(const Verdict& verdict) {
  const bool same = verdict.finding == worst_.finding;
  if (verdict.finding > worst_.finding || (same && verdict.badness > worst_.badness)) {
    worst_ = verdict;
  }
}

void Check::write_report() {
  const Item& item = worst_.item;
  const double allowed = options_.tolerance * worst_.scale;
  result_.ok = worst_.finding == Finding::agrees;
  const std::string amount = result_.directions > 0
                                 ? fmt::format("{} random directions of {} inputs",
                                               result_.directions, taped_.checked().size())
                                 : fmt::format("{} Jacobian entries of {} inputs", result_.entries,
                                               taped_.checked().size());
  if (worst_.badness < 0) {
    result_.report = fmt::format("gradcheck passed: {} checked", amount);
    return;
  }
  result_.input = static_cast<int>(item.input);
  result_.analytic = item.analytic;
  result_.numeric = item.numeric.value;
  result_.estimated = item.numeric.error;
  result_.worst_error = item.error() == 0 ? 0 : item.error() / worst_.scale;

  std::string place = fmt::format("input {} ", item.input);
  if (result_.directions > 0 && result_.ok) {
    place += fmt::format("along direction {}", item.position);
  } else {
    result_.index = unravel(item.position, inputs_[item.input].shape());
    place += index_text(result_.index);
  }
  if (item.output >= 0) {
    result_.output = unravel(static_cast<std::size_t>(item.output), probe_.center().shape());
    place += ", output " + index_text(result_.output);
  }
  const std::string figures =
      fmt::format("{}: analytic {:.12g}, numeric {:.12g}, estimated error {:.2g}", place,
                  item.analytic, item.numeric.value, item.numeric.error);
  switch (worst_.finding) {
    case Finding::agrees:
      result_.report =
          fmt::format("gradcheck passed: {} checked, worst at {}, apart by {:.2g} of {:.6g}",
                      amount, figures, result_.worst_error, worst_.scale);
      break;
    case Finding::wrong:
      result_.report = fmt::format(
          "gradcheck failed: {}; apart by {:.3g}, allowed {:.3g} ({:.2g} of {:.6g}); {} checked",
          figures, item.error(), allowed, options_.tolerance, worst_.scale, amount);
      break;
    case Finding::rough:
      result_.report = fmt::format(
          "gradcheck refused {}; differences do not converge (apart by {:.3g}, allowed {:.3g}): a "
          "kink within the step {:.3g}, or f too rough for it? {} checked",
          figures, item.roughness(), allowed,
          options_.step * size_of_entry(item.input, item.position), amount);
      break;
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const GradcheckResult& result) {
  return out << result.report;
}

GradcheckResult gradcheck(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  {
    const OpScope op("gradcheck");
    check_inputs(inputs, options);
  }
  GradcheckOptions chosen = options;
  if (is_emulated(inputs.front().device())) {  // each call of f takes long there
    chosen.max_jacobian = 0;
    chosen.directions = std::min(options.directions, 2);
  }
  return Check(f, inputs, chosen).run();
}

}  // namespace quipu
