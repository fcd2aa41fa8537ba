#pragma once
// The tape's side of gradcheck: gradients of f at a point, and all that can be checked without
// differences. Internal to autograd/.
#include <cstdint>
#include <string>
#include <vector>

#include "quipu/autograd/gradcheck/gradcheck.h"
#include "quipu/core/tensor.h"
#include "quipu/core/text.h"

namespace quipu {
class Tape;
}

namespace quipu::detail {

/// Random numbers of either sign, none so small that it hides an entry: in ±[1, 9/8).
std::vector<double> random_weights(std::uint64_t seed, std::size_t count);
/// The index of an element that is `position`-th in row-major order.
Dims unravel(std::size_t position, const Shape& shape);

/// What is wrong, and with which entry of which input if it is about one; no text: nothing is.
struct Problem {
  std::string text;
  int input = -1;
  Dims index;
};

class Taped {
 public:
  using Values = std::vector<double>;
  Taped(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
        const GradcheckOptions& options);

  /// What is wrong with f or its gradients as such, given what f gives without a tape.
  Problem problem(const Tensor& without_tape) const;

  /// Numbers of the inputs that require a gradient; what follows is in this order.
  const std::vector<std::size_t>& checked() const { return checked_; }
  /// The random upstream gradient, and the gradients under it.
  const Values& upstream() const { return upstream_; }
  const std::vector<Values>& gradients() const { return gradients_; }
  /// One row an output, all checked inputs side by side.
  std::vector<Values> jacobian() const;

 private:
  /// One recording under the random upstream.
  struct Run {
    Tensor output;
    std::vector<Tensor> gradients;
    int changed_input = -1;
  };
  Run run() const;
  std::vector<Tensor> leaves() const;
  std::vector<Tensor> walk(Tape& tape, const std::vector<Tensor>& arguments, const Tensor& o,
                           const Values& upstream, bool retain) const;
  Problem problem_with_runs(const Tensor& without_tape) const;
  Problem problem_with_zero_upstream() const;
  Problem problem_with_adding() const;
  Problem problem_with_sharing() const;

  const DifferentiableFunction& f_;
  const std::vector<Tensor>& inputs_;
  const GradcheckOptions& options_;
  std::vector<std::size_t> checked_;
  Run first_;
  Values upstream_;
  std::vector<Values> gradients_;
};

}  // namespace quipu::detail
