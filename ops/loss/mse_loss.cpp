#include "quipu/ops/loss/mse_loss.h"

#include <algorithm>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;
namespace {

void check_pair(const Tensor& x, const Tensor& y, LossReduction reduction) {
  check_enum("reduction", reduction, LossReduction::none);
  check_floating("x", x.dtype());
  check_same_dtype("x", x, "y", y);
  check_same_device("x", x, "y", y);
  check(x.shape() == y.shape(), "y has shape ", y.shape(), ", but x has shape ", x.shape(),
        " (both must agree; expand one of them if that is what you want)");
}

/// What each square counts.
double scale_of(const Tensor& x, LossReduction reduction) {
  if (reduction != LossReduction::mean) return 1;
  return 1 / static_cast<double>(std::max<std::int64_t>(x.numel(), 1));
}

/// What both gradients are multiples of.
Tensor gradient_factor(const Tensor& x, const Tensor& d_o, LossReduction reduction) {
  const Tensor factor = workspace(d_o.shape(), compute_type(x.dtype()), x.device());
  pointwise_kernel(Grad::write_to(factor), Pointwise::mul, {d_o, 2 * scale_of(x, reduction)});
  return factor;
}

struct MseLossRule {
  Saved x, y;
  LossReduction reduction;
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor &a = x, &b = y;
    const Tensor factor = gradient_factor(a, d_o, reduction);
    d.with(0, [&](const Grad& g) {
      pointwise_kernel(g, Pointwise::mul_difference, {factor, a, b});
    });
    d.with(1, [&](const Grad& g) {
      pointwise_kernel(g, Pointwise::mul_difference, {factor, b, a});
    });
  }
};

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& y, LossReduction reduction) {
  const OpScope op("mse_loss");
  check_pair(x, y, reduction);
  const bool each = reduction == LossReduction::none;
  const Tensor o = empty(each ? x.shape() : Shape{}, compute_type(x.dtype()), x.device());
  if (each) {
    pointwise_kernel(Target::write_to(o), Pointwise::square_difference, {x, y});
  } else if (x.numel() == 0) {
    fill_kernel(o, 0.0);
  } else {
    pointwise_sum_kernel(Target::write_to(o), Pointwise::square_difference, {x, y}, x.shape(),
                         scale_of(x, reduction));
  }
  const bool keeps = x.requires_grad() || y.requires_grad();
  return tie(o, {x, y}, MseLossRule{save_if(keeps, x), save_if(keeps, y), reduction});
}

void detail::mse_loss_backward(const Tensor& x, const Tensor& y, const Tensor& d_o, const Grad& d_x,
                               const Grad& d_y, LossReduction reduction) {
  const OpScope op("mse_loss_backward");
  check_pair(x, y, reduction);
  const Shape wanted = reduction == LossReduction::none ? x.shape() : Shape{};
  check(d_o.shape() == wanted, "d_o has shape ", d_o.shape(), ", but the loss has shape ", wanted);
  check_floating("d_o", d_o.dtype());
  check_same_device("x", x, "d_o", d_o);
  check_grad("d_x", d_x, x.shape(), x.device());
  check_grad("d_y", d_y, x.shape(), x.device());
  const Tensor factor = gradient_factor(x, d_o, reduction);
  if (d_x.wanted()) pointwise_kernel(d_x, Pointwise::mul_difference, {factor, x, y});
  if (d_y.wanted()) pointwise_kernel(d_y, Pointwise::mul_difference, {factor, y, x});
}

}  // namespace quipu
