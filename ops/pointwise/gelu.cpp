#include "quipu/ops/pointwise/gelu.h"

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
Tensor gelu(const Tensor& x) {
  const OpScope op("gelu");
  return unary(Pointwise::gelu, x, Keep::input, Pointwise::gelu_grad);
}

Tensor gelu_tanh(const Tensor& x) {
  const OpScope op("gelu_tanh");
  return unary(Pointwise::gelu_tanh, x, Keep::input, Pointwise::gelu_tanh_grad);
}

Tensor detail::gelu_composed(const Tensor& x) {
  return x * normal_cdf(x);
}

void detail::gelu_backward(const Tensor& x, const Tensor& d_o, const Grad& d_x) {
  const OpScope op("gelu_backward");
  check_floating("x", x.dtype());
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(x.shape() == d_o.shape(), "d_o has shape ", d_o.shape(), ", but x has shape ", x.shape());
  check_grad("d_x", d_x, x.shape(), x.device());
  pointwise_kernel(d_x, Pointwise::gelu_grad, {d_o, x});
}

Tensor detail::normal_cdf(const Tensor& x) {
  const OpScope op("normal_cdf");
  return unary(Pointwise::normal_cdf, x, Keep::input, Pointwise::normal_cdf_grad);
}

}  // namespace quipu
