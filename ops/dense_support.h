#pragma once
// What operators share whose kernels want dense rows.
#include "quipu/autograd/knot.h"
#include "quipu/core/kernels.h"
#include "quipu/core/tensor.h"

namespace quipu {

/// Undefined tensors become undefined views.
inline View view_of(const Tensor& x) {
  return x.defined() ? x.view() : View();
}
inline View view_of(const Saved& x) {
  return x.defined() ? x.get().view() : View();
}

/// A contiguous view with other sizes.
inline View seen_as(View v, const Shape& shape) {
  if (!v.defined) return v;
  v.shape = shape;
  v.strides = contiguous_strides(shape);
  return v;
}

/// A gradient that a kernel can write densely: itself, or a buffer that `finish` adds to it. A
/// buffer is of the compute type, so that sums in it are rounded once.
class DenseGrad {
 public:
  explicit DenseGrad(const Grad& g, bool needs_buffer = false) : target_(g), grad_(g) {
    if (!g.wanted() || (g.view.is_contiguous() && !needs_buffer)) return;
    buffer_ = workspace(g.view.shape, compute_type(g.view.dtype), g.view.device);
    grad_ = Grad::write_to(buffer_);
  }
  bool wanted() const { return grad_.wanted(); }
  const Grad& grad() const { return grad_; }
  Grad seen_as(const Shape& shape) const { return {quipu::seen_as(grad_.view, shape), grad_.add}; }
  void finish() const {
    if (buffer_.defined()) add_into_kernel(target_, buffer_);
  }

 private:
  Grad target_, grad_;
  Tensor buffer_;
};

}  // namespace quipu
