#include "quipu/autograd/gradient_buffer.h"

#include "quipu/core/kernels.h"

namespace quipu {

Tensor new_gradient(const Shape& shape, DType dtype, Device device) {
  return empty(shape, dtype, device, Category::gradient);
}

Tensor copy_of_gradient(const Tensor& gradient) {
  Tensor copy = new_gradient(gradient.shape(), gradient.dtype(), gradient.device());
  copy_kernel(copy, gradient);
  return copy;
}

GradientBuffer GradientBuffer::share_as(Tensor view) const {
  GradientBuffer other;
  other.memory_ = memory_;
  other.tensor_ = std::move(view);
  return other;
}

const Tensor& GradientBuffer::written() {
  if (!writable()) *this = own(copy_of_gradient(tensor_));
  return tensor_;
}

Tensor GradientBuffer::lent_or_copied() const {
  if (!writable()) return copy_of_gradient(tensor_);
  lend();
  return tensor_;
}

}  // namespace quipu
