#pragma once
// act: activations, each of which the fused operators take as an option.
//   relu     max(x, 0)
//   sigmoid  s(x) = 1 / (1 + e^-x)
//   silu     x s(x) (sigmoid linear unit; Elfwing et al. 2017, arXiv:1702.03118)
//   softmax  e^(x_i - max) / sum_j e^(x_j - max) over one dimension
#include <optional>
#include <string_view>

#include "quipu/core/tensor.h"

namespace quipu {

/// Which activation; softmax is the only one that looks at more than one entry.
enum class Act : std::uint8_t { none, relu, sigmoid, silu, softmax };
// "none", "relu", ...
const char* name_of(Act kind);
inline std::string to_string(Act kind) {
  return name_of(kind);
}
/// The other way round; throws for another name.
Act act_named(std::string_view name);

/// x of any shape and floating type -> the same shape and type. `dim` is for softmax, which needs
/// it, and for nothing else. `none` is x itself. relu keeps NaN and has gradient 0 at 0. Keeps x
/// for backward, softmax its output, none nothing.
Tensor act(const Tensor& x, Act kind, std::optional<int> dim = {});
/// act(x, Act::softmax, dim); pointwise/activations.h has the others by their names.
Tensor softmax(const Tensor& x, int dim);
namespace detail {

/// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
Tensor act_composed(const Tensor& x, Act kind, std::optional<int> dim = {});
/// Without any tape: d_x (=|+=) gradient. `saved` is x, for softmax the output; not read for none.
void act_backward(const Tensor& saved, const Tensor& d_o, const Grad& d_x, Act kind,
                  std::optional<int> dim = {});

}  // namespace detail
}  // namespace quipu
