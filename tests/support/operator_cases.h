#pragma once
// One table of operators with inputs that they are tried on: for gradient checks, for the meta
// device, for reduced types.
#include <functional>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::testing {

/// Where the values of an input come from: at random in [low, high), and
struct Domain {
  enum class Kind {
    uniform,
    grid,      // odd multiples of `unit` / 2 apart from `shift`: away from kinks at multiples of it
    distinct,  // evenly spread in random order, so that no two are near each other
  };
  double low = -2, high = 2;
  Kind kind = Kind::uniform;
  double unit = 0.1, shift = 0;
};

struct CaseInput {
  Shape shape;
  Domain domain;
};

/// How inputs lie in memory. All but `expanded` are layouts of the leaves; `upstream` leaves the
/// inputs contiguous and transposes the output, so that backward gets strided gradients.
enum class Layout { contiguous, transposed, sliced, mixed, expanded, upstream };
inline constexpr Layout all_layouts[] = {Layout::contiguous, Layout::transposed, Layout::sliced,
                                         Layout::mixed,      Layout::expanded,   Layout::upstream};
const char* name_of(Layout layout);

struct OperatorCase {
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;

  std::string op;     // which operator it is about
  std::string group;  // "pointwise", "reduce", ...
  std::vector<CaseInput> inputs;
  Function f;
  std::int64_t terms = 1;  // in the longest sum, forward or backward

  /// "mul (5, 7) (7)"
  std::string name() const;
  /// Whether the layout says something new for these shapes.
  bool has(Layout layout) const;
  /// f, with inputs expanded or the output transposed where the layout asks for it.
  Function function(Layout layout) const;
  /// The inputs in a layout; the same values on every device and, up to rounding, in every type.
  std::vector<Tensor> make_inputs(Layout layout, DType dtype, Device device) const;
};

/// Every operator of the library that has a gradient.
const std::vector<OperatorCase>& operator_cases();

/// "{0, 2}": the inputs whose bits are set.
std::string subset_text(unsigned subset);

}  // namespace quipu::testing
