#include "quipu/ops/pointwise/unary.h"

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// d_x = gradient(d_o, kept), where the input or the output is kept.
struct UnaryRule {
  Saved kept;
  Pointwise gradient;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { map_into(g, gradient, {d_o, kept.get()}, d_o.shape()); });
  }
};

enum class Keep { input, output };

Tensor unary(Pointwise f, const Tensor& x, Keep keep, Pointwise gradient) {
  const Tensor o = map(f, {x}, {x.shape(), x.dtype(), x.device()});
  return tie(o, {x}, UnaryRule{save_if(x.requires_grad(), keep == Keep::input ? x : o), gradient});
}

}  // namespace

Tensor exp(const Tensor& x) {
  const OpScope op("exp");
  check_floating("x", x.dtype());
  return unary(Pointwise::exp, x, Keep::output, Pointwise::mul);
}

Tensor sqrt(const Tensor& x) {
  const OpScope op("sqrt");
  check_floating("x", x.dtype());
  return unary(Pointwise::sqrt, x, Keep::output, Pointwise::sqrt_grad);
}

Tensor rsqrt(const Tensor& x) {
  const OpScope op("rsqrt");
  check_floating("x", x.dtype());
  return unary(Pointwise::rsqrt, x, Keep::output, Pointwise::rsqrt_grad);
}

Tensor tanh(const Tensor& x) {
  const OpScope op("tanh");
  check_floating("x", x.dtype());
  return unary(Pointwise::tanh, x, Keep::output, Pointwise::tanh_grad);
}

Tensor log(const Tensor& x) {
  const OpScope op("log");
  check_floating("x", x.dtype());
  return unary(Pointwise::log, x, Keep::input, Pointwise::div);
}

Tensor sin(const Tensor& x) {
  const OpScope op("sin");
  check_floating("x", x.dtype());
  return unary(Pointwise::sin, x, Keep::input, Pointwise::sin_grad);
}

Tensor cos(const Tensor& x) {
  const OpScope op("cos");
  check_floating("x", x.dtype());
  return unary(Pointwise::cos, x, Keep::input, Pointwise::cos_grad);
}

Tensor abs(const Tensor& x) {
  const OpScope op("abs");
  return unary(Pointwise::abs, x, Keep::input, Pointwise::abs_grad);
}

}  // namespace quipu
