#include "quipu/ops/reduce/support.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu::detail {

Reduction::Reduction(const Shape& shape, const Axes& axes, bool keepdim)
    : reduced(axes.resolve(shape.size())), whole(shape), kept(shape), count(1) {
  for (int d = 0; d < shape.size(); ++d) {
    const bool gone = reduced[static_cast<std::size_t>(d)];
    if (gone) {
      count *= shape[d];
      kept[d] = 1;
    }
    if (keepdim || !gone) result.push_back(kept[d]);
  }
}

View Reduction::keep(const Tensor& t) const {
  View view = t.view();
  if (view.dim() == kept.size()) return view;
  for (int d = 0; d < kept.size(); ++d) {
    if (!reduced[static_cast<std::size_t>(d)]) continue;
    view.shape.insert(d, 1);
    view.strides.insert(d, 1);
  }
  return view;
}

Dims Reduction::reduced_last() const {
  Dims order;
  for (const bool gone : {false, true}) {
    for (int d = 0; d < kept.size(); ++d) {
      if (reduced[static_cast<std::size_t>(d)] == gone) order.push_back(d);
    }
  }
  return order;
}

void sum_into(const Tensor& o, Pointwise f, const Operands& in, const Tensor& x,
              const Reduction& over, double scale) {
  if (over.count == 0) return fill_kernel(o, 0 * scale);
  pointwise_sum_kernel(Grad::write_to(over.keep(o)), f, in, x.shape(), scale);
}

Tensor with_reduced_last(const Tensor& x, const Reduction& over) {
  const Tensor rows = dense(x.detach().permute(over.reduced_last()));
  return rows.detach().view({numel(over.kept), over.count});
}

DType sum_dtype(DType t) {
  return is_floating(t) ? t : i64;
}

}  // namespace quipu::detail
