#pragma once
// One table of the fused operators beside their compositions, each on thirty small inputs and a
// large one, with options that take turns.
#include <functional>
#include <string>
#include <vector>

#include "quipu/core/devices.h"
#include "quipu/core/tensor.h"

namespace quipu::testing {

/// One call of an operator; all inputs get gradients.
struct FusedCase {
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;

  std::string name;
  std::vector<Shape> inputs;
  Function fused, composed;
  std::size_t theta =
      99;  // the input with angles: below 1, and f32 where the others have fewer bits

  /// The same on every device and, up to rounding, in every type; no entry is near 0.
  std::vector<Tensor> make_inputs(DType dtype, Device device) const;
};

struct FusedOperator {
  std::string name;
  std::function<FusedCase(int k)> small;  // k in [0, 30)
  FusedCase large, large_emulated;

  const FusedCase& large_on(Device device) const {
    return is_emulated(device) ? large_emulated : large;
  }
};

inline constexpr int small_inputs = 30;
const std::vector<FusedOperator>& fused_operators();

/// Rows of choices, one number below levels[i] for option i, in which every pair of choices of two
/// options occurs.
std::vector<std::vector<int>> pairwise(const std::vector<int>& levels);

}  // namespace quipu::testing
