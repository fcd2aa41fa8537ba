// max, min and where they stand.
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/kernels.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

enum class Side { largest, smallest };

/// What a caller wants to know.
struct Wanted {
  bool values, index;
};
constexpr Wanted values_only{true, false}, index_only{false, true}, both{true, true};

/// A contiguous view as one dimension.
View flat(View view) {
  view.shape = {view.numel()};
  view.strides = {1};
  return view;
}

/// All of the gradient goes to the entry that was chosen. Without an axis the index counts the
/// whole tensor.
struct ExtremeRule {
  Saved index;
  Reduction over;
  std::optional<int> axis;

  void scatter(const View& into, const Tensor& d_o) const {
    if (axis) return scatter_add_kernel(into, over.keep(index.get()), over.keep(d_o), *axis);
    scatter_add_kernel(flat(into), flat(index.get()), flat(d_o), 0);
  }
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!axis && !g.view.is_contiguous()) {
        const Tensor buffer = workspace(g.view.shape, g.view.dtype, g.view.device);
        fill_kernel(buffer, 0);
        scatter(buffer, d_o);
        return add_into_kernel(g, buffer);
      }
      if (!g.add) fill_kernel(g.view, 0);
      scatter(g.view, d_o);
    });
  }
};

Extremes extremes(const Tensor& x, std::optional<int> dim, bool keepdim, Side side, Wanted wanted) {
  std::optional<int> axis;
  if (dim) axis = wrap_dim(*dim, x.dim());
  const Reduction over(x.shape(), axis ? Axes(*axis) : Axes(), keepdim);
  const bool largest = side == Side::largest;
  check(over.count > 0, "x has shape ", x.shape(), ", so there is no ",
        largest ? "largest" : "smallest", " entry");
  if (recording() && x.requires_grad()) wanted.index = true;
  const Tensor values = wanted.values ? empty(over.result, x.dtype(), x.device()) : Tensor();
  const Tensor index = wanted.index ? empty(over.result, i64, x.device()) : Tensor();
  if (axis) {
    extreme_kernel(x, wanted.values ? over.keep(values) : View(),
                   wanted.index ? over.keep(index) : View(), *axis, largest);
  } else {
    const Tensor row = dense(x);
    extreme_kernel(flat(row), wanted.values ? flat(values) : View(),
                   wanted.index ? flat(index) : View(), 0, largest);
  }
  if (!wanted.values) return {values, no_gradient(index)};
  return {tie(values, {x}, ExtremeRule{save_if(x.requires_grad(), index), over, axis}), index};
}

}  // namespace

Tensor max(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("max");
  return extremes(x, dim, keepdim, Side::largest, values_only).values;
}

Tensor min(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("min");
  return extremes(x, dim, keepdim, Side::smallest, values_only).values;
}

Tensor argmax(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("argmax");
  return extremes(x, dim, keepdim, Side::largest, index_only).index;
}

Tensor argmin(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("argmin");
  return extremes(x, dim, keepdim, Side::smallest, index_only).index;
}

Extremes max_with_index(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("max_with_index");
  return extremes(x, dim, keepdim, Side::largest, both);
}

Extremes min_with_index(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("min_with_index");
  return extremes(x, dim, keepdim, Side::smallest, both);
}

}  // namespace quipu
