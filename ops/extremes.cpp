// max, min and where they stand.
#include "quipu/core/kernels.h"
#include "quipu/ops/gather_kernels.h"
#include "quipu/ops/pointwise_support.h"
#include "quipu/ops/reduce.h"
#include "quipu/ops/reduce_kernels.h"
#include "quipu/ops/reduce_support.h"

namespace quipu {
namespace {

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

Extremes extremes(const Tensor& x, std::optional<int> dim, bool keepdim, bool largest, bool values,
                  bool index) {
  std::optional<int> axis;
  if (dim) axis = wrap_dim(*dim, x.dim());
  const Reduction over(x.shape(), axis ? Axes(*axis) : Axes(), keepdim);
  check(over.count > 0, "x has shape ", x.shape(), ", so there is no ",
        largest ? "largest" : "smallest", " entry");
  index = index || (recording() && x.requires_grad());
  const Tensor v = values ? empty(over.result, x.dtype(), x.device()) : Tensor();
  const Tensor i = index ? empty(over.result, i64, x.device()) : Tensor();
  if (axis) {
    extreme_kernel(x, values ? over.keep(v) : View(), index ? over.keep(i) : View(), *axis,
                   largest);
  } else {
    const Tensor dense = x.is_contiguous() ? x : workspace(x.shape(), x.dtype(), x.device());
    if (!x.is_contiguous()) copy_kernel(dense, x);
    extreme_kernel(flat(dense), values ? flat(v) : View(), index ? flat(i) : View(), 0, largest);
  }
  if (!values) return {v, no_gradient(i)};
  return {tie(v, {x}, ExtremeRule{save_if(x.requires_grad(), i), over, axis}), i};
}

}  // namespace

Tensor max(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("max");
  return extremes(x, dim, keepdim, true, true, false).values;
}

Tensor min(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("min");
  return extremes(x, dim, keepdim, false, true, false).values;
}

Tensor argmax(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("argmax");
  return extremes(x, dim, keepdim, true, false, true).index;
}

Tensor argmin(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("argmin");
  return extremes(x, dim, keepdim, false, false, true).index;
}

Extremes max_with_index(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("max_with_index");
  return extremes(x, dim, keepdim, true, true, true);
}

Extremes min_with_index(const Tensor& x, std::optional<int> dim, bool keepdim) {
  const OpScope op("min_with_index");
  return extremes(x, dim, keepdim, false, true, true);
}

}  // namespace quipu
