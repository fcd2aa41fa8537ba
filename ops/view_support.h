#pragma once
// Views for kernels: of arguments that may not be there, and of rows seen with other sizes.
// Internal to ops/.
#include "quipu/autograd/knot.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// Undefined tensors become undefined views.
inline View optional_view(const Tensor& x) {
  return x.defined() ? x.view() : View();
}
inline View optional_view(const Saved& x) {
  return x.defined() ? x.get().view() : View();
}

/// A contiguous view with other sizes.
inline View seen_as(View v, const Shape& shape) {
  if (!v.defined) return v;
  v.shape = shape;
  v.strides = contiguous_strides(shape);
  return v;
}

}  // namespace quipu::detail
