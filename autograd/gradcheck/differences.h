#pragma once
// Numerical derivatives of a function of tensors: central differences with Richardson extrapolation
// to step zero, and an error estimate from its table (Ridders 1982).
// Internal to autograd/.
#include <cstdint>
#include <span>
#include <vector>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

struct Derivative {
  double value = 0;
  double error = 0;  // estimate: how far neighbours in the extrapolation table are apart
  /// How far f is from smooth within the first step, in units of the derivative: the jump of its
  /// slope at a kink, next to nothing where it is smooth.
  double roughness = 0;
};

/// A direction in the space of one input: `values` at [begin, end), zero elsewhere.
struct Direction {
  std::size_t input = 0;
  std::span<const double> values;
  std::size_t begin = 0, end = 0;
};

/// Calls f; throws unless it returned an f64 tensor.
Tensor evaluate(const DifferentiableFunction& f, const std::vector<Tensor>& arguments);

/// A copy with the same shape, strides and alignment on storage of its own; what lies between its
/// elements is NaN.
Tensor copy_with_strides(const Tensor& x);

/// f around a point.
class Probe {
 public:
  Probe(const DifferentiableFunction& f, const std::vector<Tensor>& inputs);

  const std::vector<double>& values(std::size_t input) const { return values_[input]; }
  const Tensor& center() const { return center_; }

  /// Derivatives of all outputs along a direction, from steps of `step` and its halves. `weights`,
  /// if not empty, sums the outputs to one.
  std::vector<Derivative> along(const Direction& direction, double step,
                                std::span<const double> weights);
  /// The size of a derivative that could be nothing but rounding of f.
  double noise(double step, std::span<const double> weights) const;

 private:
  std::vector<double> at(const Direction& direction, double distance);

  const DifferentiableFunction& f_;
  std::vector<Tensor> arguments_;            // what f gets; rewritten for every evaluation
  std::vector<std::vector<double>> values_;  // of the inputs that require a gradient
  Tensor center_;                            // f at the point
  std::vector<double> center_values_;
};

}  // namespace quipu::detail
