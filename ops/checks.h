#pragma once
// What operators ask of their arguments. Each check throws an Error that says which call to add.
// Internal to ops/.
#include "quipu/core/tensor.h"

namespace quipu::detail {

void check_same_device(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);
void check_same_dtype(const char* a_name, const Tensor& a, const char* b_name, const Tensor& b);
void check_floating(const char* name, DType dtype);
/// Index tensors are i64 or i32.
void check_index(const char* name, const Tensor& index);
void check_bool(const char* name, const Tensor& x);
/// Where the gradient of a tensor of this shape and device is to be left, if it is wanted.
void check_grad(const char* name, const Grad& grad, const Shape& shape, Device device);

}  // namespace quipu::detail
