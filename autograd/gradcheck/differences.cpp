#include "quipu/autograd/gradcheck/differences.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "quipu/autograd/knot.h"

namespace quipu::detail {
namespace {

// Each level halves the step.
constexpr std::size_t levels = 4;
using Levels = std::array<double, levels>;

// Central differences have an error series in even powers of the step: column k of the table is
// free of the first k of them. The entry that agrees best with its neighbours wins, so that
// rounding (small steps) and truncation (large steps) are balanced for each derivative on its own.
Derivative extrapolate(const Levels& central) {
  std::array<Levels, levels> table{};  // [column][level]
  table[0] = central;
  Derivative best{central[levels - 1], std::numeric_limits<double>::infinity(), 0};
  double factor = 1;
  for (std::size_t k = 1; k < levels; ++k) {
    factor *= 4;
    const Levels& left = table[k - 1];
    for (std::size_t i = k; i < levels; ++i) {
      const double value = left[i] + (left[i] - left[i - 1]) / (factor - 1);
      const double error = std::max(std::abs(value - left[i]), std::abs(value - left[i - 1]));
      if (error < best.error) best = {value, error, 0};
      table[k][i] = value;
    }
  }
  // Where f is smooth, large steps and small ones give the same.
  best.roughness = std::abs(table[2][2] - table[2][3]);
  return best;
}

// Second differences over the step vanish with it where f is smooth, in odd powers; at a kink they
// keep the jump of the slope, which central differences at the kink itself do not see.
double slope_jump(const Levels& second) {
  Levels once{}, twice{};
  for (std::size_t i = 1; i < levels; ++i) once[i] = 2 * second[i] - second[i - 1];
  for (std::size_t i = 2; i < levels; ++i) twice[i] = (8 * once[i] - once[i - 1]) / 7;
  const double early = std::abs(twice[2]), late = std::abs(twice[3]);
  return early <= late ? late : early;  // a NaN in either must not get lost
}

}  // namespace

Tensor evaluate(const DifferentiableFunction& f, const std::vector<Tensor>& arguments) {
  const Tensor o = f(arguments);
  const OpScope op("gradcheck");
  check(o.defined(), "f returned an undefined tensor");
  check(o.dtype() == f64, "f returned ", o.dtype(), ", but differences need f64 throughout");
  return o;
}

Tensor copy_with_strides(const Tensor& x) {
  std::int64_t span = 1;
  for (int d = 0; d < x.dim(); ++d) {
    if (x.size(d) > 1) span += (x.size(d) - 1) * x.strides()[d];
  }
  constexpr std::int64_t alignment = 64;  // elements of f64 in an allocator's granule
  const std::int64_t offset = x.offset() % alignment;
  const Tensor all =
      full({offset + span}, std::numeric_limits<double>::quiet_NaN(), x.dtype(), x.device());
  Tensor copy(Ref<Storage>(&all.storage()), offset, x.shape(), x.strides(), x.dtype());
  copy.copy_from(x.detach());
  return copy;
}

Probe::Probe(const DifferentiableFunction& f, const std::vector<Tensor>& inputs) : f_(f) {
  const NoGrad no_grad;
  for (const Tensor& x : inputs) {
    const bool moves = x.requires_grad();
    arguments_.push_back(moves ? copy_with_strides(x) : x);
    values_.push_back(moves ? x.detach().to_vector() : std::vector<double>());
  }
  center_ = evaluate(f_, arguments_).clone();
  center_values_ = center_.to_vector();
}

std::vector<double> Probe::at(const Direction& direction, double distance) {
  const NoGrad no_grad;
  const Tensor& x = arguments_[direction.input];
  std::vector<double> moved = values_[direction.input];
  for (std::size_t i = direction.begin; i < direction.end; ++i) {
    moved[i] += distance * direction.values[i];
  }
  x.copy_from(from(moved, x.shape(), f64, x.device()));
  const Tensor output = evaluate(f_, arguments_);
  check(output.shape() == center_.shape(),
        "the shape of the output changes with the values of input ", direction.input);
  std::vector<double> result = output.to_vector();
  x.copy_from(from(values_[direction.input], x.shape(), f64, x.device()));
  return result;
}

std::vector<Derivative> Probe::along(const Direction& direction, double step,
                                     std::span<const double> weights) {
  const std::size_t outputs = center_values_.size();
  std::vector<Levels> central(weights.empty() ? outputs : 1), second(central.size());
  double h = step;
  for (std::size_t level = 0; level < levels; ++level, h /= 2) {
    const std::vector<double> after = at(direction, h), before = at(direction, -h);
    for (std::size_t j = 0; j < outputs; ++j) {
      const double slope = (after[j] - before[j]) / (2 * h);
      const double bend = ((after[j] - center_values_[j]) - (center_values_[j] - before[j])) / h;
      const std::size_t o = weights.empty() ? j : 0;
      const double weight = weights.empty() ? 1 : weights[j];
      central[o][level] += weight * slope;
      second[o][level] += weight * bend;
    }
  }
  std::vector<Derivative> result(central.size());
  for (std::size_t j = 0; j < result.size(); ++j) {
    result[j] = extrapolate(central[j]);
    const double jump = slope_jump(second[j]);
    if (!(jump <= result[j].roughness)) result[j].roughness = jump;
  }
  return result;
}

double Probe::noise(double step, std::span<const double> weights) const {
  double size = 0;
  for (std::size_t j = 0; j < center_values_.size(); ++j) {
    const double y = std::abs(center_values_[j]);
    size = weights.empty() ? std::max(size, y) : std::hypot(size, y * weights[j]);
  }
  const double smallest_step = step / (1 << (levels - 1));
  return 64 * epsilon_of(f64) * size / smallest_step;
}

}  // namespace quipu::detail
