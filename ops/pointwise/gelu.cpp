#include "quipu/ops/pointwise/gelu.h"

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

struct NormalRule {
  Saved x;
  Pointwise gradient;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { pointwise_kernel(g, gradient, {d_o, x.get()}); });
  }
};

Tensor apply_function(const Tensor& x, Pointwise f, Pointwise gradient) {
  check_floating("x", x.dtype());
  const Tensor o = map(f, {x}, {x.shape(), x.dtype(), x.device()});
  return tie(o, {x}, NormalRule{save_if(x.requires_grad(), x), gradient});
}

}  // namespace

Tensor gelu(const Tensor& x) {
  const OpScope op("gelu");
  return apply_function(x, Pointwise::gelu, Pointwise::gelu_grad);
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
  return apply_function(x, Pointwise::normal_cdf, Pointwise::normal_cdf_grad);
}

}  // namespace quipu
