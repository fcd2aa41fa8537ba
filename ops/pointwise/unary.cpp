#include "quipu/ops/pointwise/unary.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// d_x = gradient(d_o, kept, third), where the input or the output is kept.
struct UnaryRule {
  Saved kept;
  Pointwise gradient;
  std::optional<Scalar> third;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!third) return pointwise_kernel(g, gradient, {d_o, kept.get()});
      pointwise_kernel(g, gradient, {d_o, kept.get(), *third});
    });
  }
};

/// A function that is constant but for its steps.
struct StepRule {
  void backward(const Tensor&, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!g.add) fill_kernel(g.view, 0);
    });
  }
};

Tensor map_same(Pointwise f, const Operands& in, const Tensor& x) {
  return map(f, in, {x.shape(), x.dtype(), x.device()});
}

Tensor step(Pointwise f, const Tensor& x) {
  return tie(map_same(f, {x}, x), {x}, StepRule{});
}

}  // namespace

Tensor detail::unary(Pointwise f, const Tensor& x, Keep keep, Pointwise gradient,
                     const std::optional<Scalar>& parameter) {
  check_floating("x", x.dtype());
  const Tensor o = parameter ? map_same(f, {x, *parameter}, x) : map_same(f, {x}, x);
  const Tensor& kept = keep == Keep::input ? x : o;
  return tie(o, {x}, UnaryRule{save_if(x.requires_grad(), kept), gradient, parameter});
}

Tensor exp(const Tensor& x) {
  const OpScope op("exp");
  return unary(Pointwise::exp, x, Keep::output, Pointwise::mul);
}

Tensor sqrt(const Tensor& x) {
  const OpScope op("sqrt");
  return unary(Pointwise::sqrt, x, Keep::output, Pointwise::sqrt_grad);
}

Tensor rsqrt(const Tensor& x) {
  const OpScope op("rsqrt");
  return unary(Pointwise::rsqrt, x, Keep::output, Pointwise::rsqrt_grad);
}

Tensor tan(const Tensor& x) {
  const OpScope op("tan");
  return unary(Pointwise::tan, x, Keep::output, Pointwise::mul_square_plus_one);
}

Tensor tanh(const Tensor& x) {
  const OpScope op("tanh");
  return unary(Pointwise::tanh, x, Keep::output, Pointwise::tanh_grad);
}

Tensor log(const Tensor& x) {
  const OpScope op("log");
  return unary(Pointwise::log, x, Keep::input, Pointwise::div);
}

Tensor log1p(const Tensor& x) {
  const OpScope op("log1p");
  return unary(Pointwise::log1p, x, Keep::input, Pointwise::log1p_grad);
}

Tensor sin(const Tensor& x) {
  const OpScope op("sin");
  return unary(Pointwise::sin, x, Keep::input, Pointwise::sin_grad);
}

Tensor cos(const Tensor& x) {
  const OpScope op("cos");
  return unary(Pointwise::cos, x, Keep::input, Pointwise::cos_grad);
}

Tensor asin(const Tensor& x) {
  const OpScope op("asin");
  return unary(Pointwise::asin, x, Keep::input, Pointwise::asin_grad);
}

Tensor acos(const Tensor& x) {
  const OpScope op("acos");
  return unary(Pointwise::acos, x, Keep::input, Pointwise::acos_grad);
}

Tensor atan(const Tensor& x) {
  const OpScope op("atan");
  return unary(Pointwise::atan, x, Keep::input, Pointwise::atan_grad);
}

Tensor sinh(const Tensor& x) {
  const OpScope op("sinh");
  return unary(Pointwise::sinh, x, Keep::input, Pointwise::mul_cosh);
}

Tensor cosh(const Tensor& x) {
  const OpScope op("cosh");
  return unary(Pointwise::cosh, x, Keep::input, Pointwise::mul_sinh);
}

Tensor asinh(const Tensor& x) {
  const OpScope op("asinh");
  return unary(Pointwise::asinh, x, Keep::input, Pointwise::asinh_grad);
}

Tensor acosh(const Tensor& x) {
  const OpScope op("acosh");
  return unary(Pointwise::acosh, x, Keep::input, Pointwise::acosh_grad);
}

Tensor atanh(const Tensor& x) {
  const OpScope op("atanh");
  return unary(Pointwise::atanh, x, Keep::input, Pointwise::atanh_grad);
}

Tensor erf(const Tensor& x) {
  const OpScope op("erf");
  return unary(Pointwise::erf, x, Keep::input, Pointwise::erf_grad);
}

Tensor reciprocal(const Tensor& x) {
  const OpScope op("reciprocal");
  return unary(Pointwise::reciprocal, x, Keep::output, Pointwise::reciprocal_grad);
}

Tensor expm1(const Tensor& x) {
  const OpScope op("expm1");
  check_floating("x", x.dtype());
  const Tensor o = map_same(Pointwise::expm1, {x}, x);
  return tie(o, {x}, UnaryRule{save_if(x.requires_grad(), x), Pointwise::mul_exp_difference, 0});
}

Tensor square(const Tensor& x) {
  const OpScope op("square");
  const Tensor o = map_same(Pointwise::mul, {x, x}, x);
  return tie(o, {x}, UnaryRule{save_if(x.requires_grad(), x), Pointwise::mul_mul, 2});
}

Tensor abs(const Tensor& x) {
  const OpScope op("abs");
  const Tensor o = map_same(Pointwise::abs, {x}, x);
  return tie(o, {x}, UnaryRule{save_if(x.requires_grad(), x), Pointwise::abs_grad, {}});
}

Tensor sign(const Tensor& x) {
  const OpScope op("sign");
  return step(Pointwise::sign, x);
}

Tensor floor(const Tensor& x) {
  const OpScope op("floor");
  return step(Pointwise::floor, x);
}

Tensor ceil(const Tensor& x) {
  const OpScope op("ceil");
  return step(Pointwise::ceil, x);
}

Tensor round(const Tensor& x) {
  const OpScope op("round");
  return step(Pointwise::round, x);
}

Tensor trunc(const Tensor& x) {
  const OpScope op("trunc");
  return step(Pointwise::trunc, x);
}

}  // namespace quipu
