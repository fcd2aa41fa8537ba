#include "quipu/ops/pointwise/swiglu.h"

#include "quipu/ops/act.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

void check_swiglu(const Tensor& gate, const Tensor& x) {
  check_floating("gate", gate.dtype());
  check_same_dtype("gate", gate, "x", x);
  check_same_device("gate", gate, "x", x);
  check(gate.shape() == x.shape(), "x has shape ", x.shape(), ", but gate has shape ",
        gate.shape());
}

struct SwigluRule {
  Saved gate, x;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      pointwise_kernel(g, Pointwise::mul_silu_grad, {d_o, gate.get(), x.get()});
    });
    d.with(1, [&](const Grad& g) { pointwise_kernel(g, Pointwise::mul_silu, {d_o, gate.get()}); });
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& x) {
  const OpScope op("swiglu");
  check_swiglu(gate, x);
  const Tensor o = map(Pointwise::mul_silu, {x, gate}, {x.shape(), x.dtype(), x.device()});
  const bool wanted = gate.requires_grad();
  return tie(o, {gate, x},
             SwigluRule{save_if(wanted || x.requires_grad(), gate), save_if(wanted, x)});
}

Tensor detail::swiglu_composed(const Tensor& gate, const Tensor& x) {
  return act_composed(gate, Act::silu) * x;
}

void detail::swiglu_backward(const Tensor& gate, const Tensor& x, const Tensor& d_o,
                             const Grad& d_gate, const Grad& d_x) {
  const OpScope op("swiglu_backward");
  check_swiglu(gate, x);
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(d_o.shape() == x.shape(), "d_o has shape ", d_o.shape(), ", but x has shape ", x.shape());
  check_grad("d_gate", d_gate, x.shape(), x.device());
  check_grad("d_x", d_x, x.shape(), x.device());
  if (d_gate.wanted()) pointwise_kernel(d_gate, Pointwise::mul_silu_grad, {d_o, gate, x});
  if (d_x.wanted()) pointwise_kernel(d_x, Pointwise::mul_silu, {d_o, gate});
}

}  // namespace quipu
