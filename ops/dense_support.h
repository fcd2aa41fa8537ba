#pragma once
// What operators share whose kernels want dense rows. Internal to ops/.
#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/view_support.h"

namespace quipu::detail {

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
  Grad seen_as(const Shape& shape) const { return {detail::seen_as(grad_.view, shape), grad_.add}; }
  void finish() const {
    if (buffer_.defined()) add_into_kernel(target_, buffer_);
  }

 private:
  Grad target_, grad_;
  Tensor buffer_;
};

}  // namespace quipu::detail
