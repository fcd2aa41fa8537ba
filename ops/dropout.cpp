#include "quipu/ops/dropout.h"

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dropout_kernels.h"

namespace quipu {
using namespace detail;
namespace {

struct DropoutRule {
  double p;
  PhiloxState state;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { dropout_kernel(d_o, g, p, state); });
  }
};

}  // namespace

Tensor dropout(const Tensor& x, double p, Generator& generator) {
  const OpScope op("dropout");
  check(p >= 0 && p <= 1, "p is ", p, ", but a probability lies between 0 and 1");
  check_floating("x", x.dtype());
  if (p == 0) return x;
  const PhiloxState state = generator.reserve(philox_counters(x.numel()));
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  dropout_kernel(x, Target::write_to(o), p, state);
  return tie(o, {x}, DropoutRule{p, state});
}

}  // namespace quipu
