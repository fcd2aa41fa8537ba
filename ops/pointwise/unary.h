#pragma once
// Functions of one tensor, element by element, in its type. Floating types only, where nothing else
// is said.
#include "quipu/core/tensor.h"

namespace quipu {

// These keep their output for backward.
Tensor exp(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);       // 1 / sqrt(x)
Tensor reciprocal(const Tensor& x);  // 1 / x
Tensor tan(const Tensor& x);
Tensor tanh(const Tensor& x);

// These keep their input. Outside of where they are defined they give NaN.
Tensor log(const Tensor& x);
Tensor log1p(const Tensor& x);  // log(1 + x) with all its digits near 0
Tensor expm1(const Tensor& x);  // exp(x) - 1 likewise
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
Tensor erf(const Tensor& x);     // the error function
Tensor square(const Tensor& x);  // x * x; any type
Tensor abs(const Tensor& x);     // gradient 0 at 0; any type

// Any type; whole numbers stay as they are, but for their sign in sign(). The gradient is 0.
Tensor sign(const Tensor& x);   // -1, 0 or 1; NaN stays NaN
Tensor floor(const Tensor& x);  // the largest whole number up to x
Tensor ceil(const Tensor& x);   // the smallest whole number from x on
Tensor round(const Tensor& x);  // the nearest whole number, of two the even one
Tensor trunc(const Tensor& x);  // x without its fraction

}  // namespace quipu
