#include "quipu/ops/reduce/support.h"

namespace quipu::detail {

Reduction::Reduction(const Shape& shape, const Axes& axes, bool keepdim)
    : reduced(axes.resolve(shape.size())), kept(shape), count(1) {
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

}  // namespace quipu::detail
