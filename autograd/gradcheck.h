#pragma once
// Checks gradients numerically by one call.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

struct GradcheckOptions {
  double tolerance = 1e-7;  // of the largest Jacobian entry (of the directional derivative in direction mode)
  double step = 1e-3;       // first step, relative to max(1, |x|); Richardson halves it
  /// Full Jacobian up to this many (input × output) entries, random directions beyond.
  std::int64_t max_jacobian = 4096;
  int directions = 4;
  std::uint64_t seed = 2024;
  /// Distance of each input entry to the nearest kink of f, if it has any: entries nearer than the step are refused.
  std::function<double(const std::vector<Tensor>& inputs)> kink_distance;
};

struct GradcheckResult {
  bool ok = false;
  double worst_error = 0;  // relative, as compared with the tolerance
  std::string report;      // names the worst entry: input, index, analytic, numeric, estimated error
  explicit operator bool() const { return ok; }
};
std::ostream& operator<<(std::ostream& out, const GradcheckResult& result);

using DifferentiableFunction = std::function<Tensor(const std::vector<Tensor>&)>;

/// Compares the gradients of f that the tape gives with central differences (Richardson extrapolation, with an error
/// estimate), under a random upstream gradient. Inputs are f64; those that require a gradient are checked. Also checks
/// that gradients have the right shape and dtype, that a zero upstream gives zero and that two runs agree to the bit.
GradcheckResult gradcheck(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

}  // namespace quipu
