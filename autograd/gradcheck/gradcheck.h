#pragma once
// Checks gradients numerically by one call.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

/// How strictly and at which points gradcheck looks; the defaults suit smooth functions in f64.
struct GradcheckOptions {
  /// Allowed error, as a part of the largest Jacobian entry of the same input (of the largest
  /// directional derivative in direction mode).
  double tolerance = 1e-7;
  /// First and largest step, times max(1, |x|). f must be smooth within it around each entry (and
  /// an eighth further in direction mode).
  double step = 1e-3;
  /// Full Jacobian up to this many (input x output) entries, random directions beyond.
  std::int64_t max_jacobian = 4096;
  /// Random directions for each input beyond max_jacobian; at least 1.
  int directions = 4;
  /// Of directions and upstream gradients: the same seed checks the same.
  std::uint64_t seed = 2024;
  /// Distance from a value of an input to the nearest kink of f, for kinks that are known. Entries
  /// nearer than the step are refused. Without it, differences that do not converge tell.
  std::function<double(int input, double x)> kink_distance = nullptr;
};

/// The verdict and what it rests on. Usable as a condition: if (!gradcheck(...)) ...
struct GradcheckResult {
  bool ok = false;     // everything that was checked is right
  std::string report;  // the verdict, the worst entry, how much was checked

  // The worst entry; input is -1 when the verdict is not about one.
  int input = -1;
  Dims index;              // within the input
  Dims output;             // within the output; empty in direction mode, where all outputs count
  double analytic = 0;     // what the tape gave
  double numeric = 0;      // what differences gave
  double estimated = 0;    // error estimate of `numeric`
  double worst_error = 0;  // |analytic - numeric|, as compared with the tolerance

  std::int64_t entries = 0;     // Jacobian entries checked one by one
  std::int64_t directions = 0;  // directions checked instead, over all inputs

  /// As `ok`.
  explicit operator bool() const { return ok; }
};
/// Prints the report.
std::ostream& operator<<(std::ostream& out, const GradcheckResult& result);

/// One f64 tensor of any shape from the inputs, the same for the same inputs.
using DifferentiableFunction = std::function<Tensor(const std::vector<Tensor>&)>;

/// Compares the gradients of f that the tape gives with central differences (Richardson
/// extrapolation with an error estimate), in f64. Inputs that require a gradient are checked;
/// copies of them with the same strides are given to f, and their `grad` is left alone.
///
/// Small problems: every entry of the Jacobian, and a random upstream gradient. Large ones: random
/// directions under a random upstream gradient; a failure is then traced to one entry. On an
/// emulated device always two directions for each input.
/// Also checked: f gives the same bits twice, with and without a tape, and leaves its inputs alone;
/// gradients have the right shape and dtype; a zero upstream gives zero; gradients add to those
/// that are there; they stay right in a graph that uses inputs and output several times, and with
/// the operators of f recorded in other orders. A kink of f within the step is a failure that says
/// so.
///
/// Throws Error when the question makes no sense: no input requires a gradient, one that does is
/// not f64 or repeats elements (stride 0; expand inside f instead), the device is meta, or f does
/// not return an f64 tensor.
GradcheckResult gradcheck(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

}  // namespace quipu
