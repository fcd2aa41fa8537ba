#include "quipu/autograd/gradient_buffer.h"

#include "quipu/core/dispatch/kernels.h"

namespace quipu::detail {

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

const Tensor& GradientBuffer::for_writing() {
  if (!writable()) *this = own(copy_of_gradient(tensor_));
  return tensor_;
}

Tensor GradientBuffer::taken_or_copied() const {
  if (!writable()) return copy_of_gradient(tensor_);
  lend();
  return tensor_;
}

}  // namespace quipu::detail
