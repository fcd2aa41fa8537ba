#pragma once
// Functions of one tensor, element by element; floating types only, abs excepted.
#include "quipu/core/tensor.h"

namespace quipu {

// These keep their output for backward.
Tensor exp(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);  // 1 / sqrt(x)
Tensor tanh(const Tensor& x);

// These keep their input.
Tensor log(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor abs(const Tensor& x);  // gradient 0 at 0

}  // namespace quipu
