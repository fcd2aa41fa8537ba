#pragma once
// The tape's side of gradcheck: gradients of f at a point, and all that can be checked without
// differences.
#include <cstdint>
#include <string>
#include <vector>

#include "quipu/autograd/gradcheck.h"
#include "quipu/core/tensor.h"

namespace quipu {

class Tape;

/// Random numbers of either sign, none so small that it hides an entry: in ±[1/2, 1).
std::vector<double> random_weights(std::uint64_t seed, std::size_t count);
/// The index of an element that is `position`-th in row-major order.
Dims unravel(std::size_t position, const Shape& shape);
/// "[2, 3]"
std::string index_text(const Dims& index);

class Taped {
 public:
  using Values = std::vector<double>;
  /// `center` is what f gives without a tape.
  Taped(const DifferentiableFunction& f, const std::vector<Tensor>& inputs, const Tensor& center,
        const GradcheckOptions& options);

  /// What is wrong with f or its gradients as such; "" when nothing is. Finds the gradients, too.
  std::string problem();

  /// Numbers of the inputs that require a gradient; what follows is in this order.
  const std::vector<std::size_t>& checked() const { return checked_; }
  /// The random upstream gradient, and the gradients under it.
  const Values& upstream() const { return upstream_; }
  const std::vector<Values>& gradients() const { return gradients_; }
  /// One row an output, all checked inputs side by side.
  std::vector<Values> jacobian() const;

 private:
  std::vector<Tensor> leaves() const;
  std::vector<Tensor> walk(Tape& tape, const std::vector<Tensor>& leaves, const Tensor& o,
                           const Values& upstream, bool retain) const;
  Tensor as_output(const Values& values) const;
  std::string problem_with_runs();
  std::string problem_with_zero_upstream() const;
  std::string problem_with_adding() const;

  const DifferentiableFunction& f_;
  const std::vector<Tensor>& inputs_;
  const Tensor& center_;
  const GradcheckOptions& options_;
  std::vector<std::size_t> checked_;
  Values upstream_;
  std::vector<Values> gradients_;
};

}  // namespace quipu
