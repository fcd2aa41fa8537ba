#include "quipu/ops/pointwise/activations.h"

#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;

Tensor relu(const Tensor& x) {
  const OpScope op("relu");
  return unary(Pointwise::relu, x, Keep::input, Pointwise::relu_grad);
}

Tensor sigmoid(const Tensor& x) {
  const OpScope op("sigmoid");
  return unary(Pointwise::sigmoid, x, Keep::input, Pointwise::sigmoid_grad);
}

Tensor silu(const Tensor& x) {
  const OpScope op("silu");
  return unary(Pointwise::silu, x, Keep::input, Pointwise::silu_grad);
}

Tensor softplus(const Tensor& x) {
  const OpScope op("softplus");
  return unary(Pointwise::softplus, x, Keep::input, Pointwise::mul_sigmoid);
}

Tensor mish(const Tensor& x) {
  const OpScope op("mish");
  return unary(Pointwise::mish, x, Keep::input, Pointwise::mish_grad);
}

Tensor hardswish(const Tensor& x) {
  const OpScope op("hardswish");
  return unary(Pointwise::hardswish, x, Keep::input, Pointwise::hardswish_grad);
}

Tensor elu(const Tensor& x, double alpha) {
  const OpScope op("elu");
  return unary(Pointwise::elu, x, Keep::input, Pointwise::elu_grad, alpha);
}

Tensor leaky_relu(const Tensor& x, double slope) {
  const OpScope op("leaky_relu");
  return unary(Pointwise::leaky_relu, x, Keep::input, Pointwise::leaky_relu_grad, slope);
}

}  // namespace quipu
