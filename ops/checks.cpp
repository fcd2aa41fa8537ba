#include "quipu/ops/checks.h"

namespace quipu::detail {

void check_same_device(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  check(a.device() == b.device(), a_name, " is on ", a.device(), " and ", b_name, " on ",
        b.device(), "; move one with .to(\"", a.device(), "\")");
}

void check_same_dtype(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b) {
  check(a.dtype() == b.dtype(), a_name, " is ", a.dtype(), " and ", b_name, " is ", b.dtype(),
        "; convert one with .to(", promote(a.dtype(), b.dtype()), ")");
}

void check_floating(const char* name, DType dtype) {
  check(is_floating(dtype), name, " is ", dtype,
        ", but a floating type is needed; convert it with .to(f32)");
}

void check_index(const char* name, const Tensor& index) {
  check(index.dtype() == i64 || index.dtype() == i32, name, " is ", index.dtype(),
        ", but indices are i64 or i32; convert it with .to(i64)");
}

void check_bool(const char* name, const Tensor& x) {
  check(x.dtype() == boolean, name, " is ", x.dtype(),
        ", but must be bool; compare it first, as in ne(", name, ", 0)");
}

void check_grad(const char* name, const Grad& grad, const Shape& shape, Device device) {
  if (!grad.wanted()) return;
  check(grad.view.shape == shape, name, " has shape ", grad.view.shape,
        ", but what it is the gradient of has shape ", shape);
  check(grad.view.device == device, name, " is on ", grad.view.device,
        ", but what it is the gradient of is on ", device);
}

}  // namespace quipu::detail
