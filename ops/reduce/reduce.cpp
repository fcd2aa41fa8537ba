#include "quipu/ops/reduce/reduce.h"

#include <cmath>
#include <limits>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

/// sum and mean: every entry gets the same share of the gradient.
struct SumRule {
  Reduction over;
  double scale;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (scale == 1) return pointwise_kernel(g, Pointwise::copy, {over.keep(d_o)});
      pointwise_kernel(g, Pointwise::mul, {over.keep(d_o), scale});
    });
  }
};

Tensor scaled_sum(const Tensor& x, const Reduction& over, double scale) {
  const Tensor o = empty(over.result, sum_dtype(x.dtype()), x.device());
  sum_into(o, Pointwise::copy, {x}, x, over, scale);
  return tie(o, {x}, SumRule{over, scale});
}

/// d_x = d_o / o^(p - 1) sign(x) |x|^(p - 1), and 0 where o is 0.
struct NormRule {
  Saved x, o;
  Reduction over;
  double p;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      const Tensor share = workspace(over.kept, compute_type(g.view.dtype), d_o.device());
      const auto to = Target::write_to(share);
      const View length = over.keep(o);
      pointwise_kernel(to, Pointwise::pow, {length, 1 - p});
      pointwise_kernel(to, Pointwise::where, {length, share, 0.0});
      pointwise_kernel(to, Pointwise::mul, {share, over.keep(d_o)});
      if (p == 2) return pointwise_kernel(g, Pointwise::mul, {share, x.get()});
      const Tensor slope = workspace(x.get().shape(), share.dtype(), d_o.device());
      const auto slope_to = Target::write_to(slope);
      pointwise_kernel(slope_to, Pointwise::abs, {x.get()});
      pointwise_kernel(slope_to, Pointwise::pow, {slope, p - 1});
      pointwise_kernel(slope_to, Pointwise::abs_grad, {slope, x.get()});
      pointwise_kernel(g, Pointwise::mul, {share, slope});
    });
  }
};

Tensor norm_of_power(const Tensor& x, double p, const Axes& axes, bool keepdim) {
  const Reduction over(x.shape(), axes, keepdim);
  const Tensor total = workspace(over.kept, f64, x.device());
  if (p == 2) {
    sum_into(total, Pointwise::mul, {x, x}, x, over, 1);
  } else {
    const Tensor power = workspace(x.shape(), compute_type(x.dtype()), x.device());
    pointwise_kernel(Target::write_to(power), Pointwise::abs, {x});
    if (p != 1) pointwise_kernel(Target::write_to(power), Pointwise::pow, {power, p});
    sum_into(total, Pointwise::copy, {power}, x, over, 1);
  }
  const Tensor o = empty(over.result, x.dtype(), x.device());
  pointwise_kernel(Target::write_to(over.keep(o)), Pointwise::pow, {total, 1 / p});
  const bool keeps = x.requires_grad();
  return tie(o, {x}, NormRule{save_if(keeps, x), save_if(keeps, o), over, p});
}

Tensor truth_of(const Tensor& x) {
  return x.dtype() == boolean ? x : ne(x, 0);
}

}  // namespace

Tensor sum(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("sum");
  return scaled_sum(x, Reduction(x.shape(), axes, keepdim), 1);
}

Tensor mean(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("mean");
  check_floating("x", x.dtype());
  const Reduction over(x.shape(), axes, keepdim);
  return scaled_sum(x, over, over.count ? 1 / static_cast<double>(over.count) : std::nan(""));
}

Tensor norm(const Tensor& x, double p, const Axes& axes, bool keepdim) {
  const OpScope op("norm");
  check_floating("x", x.dtype());
  check(!std::isnan(p), "p is NaN");
  if (p == 0) return sum(ne(x, 0), axes, keepdim).to(x.dtype());
  if (std::isfinite(p)) return norm_of_power(x, p, axes, keepdim);
  if (p < 0) return min(abs(x), axes, keepdim);
  if (Reduction(x.shape(), axes, keepdim).count == 0) return sum(x, axes, keepdim);
  return max(abs(x), axes, keepdim);
}

Tensor any(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("any");
  const Reduction over(x.shape(), axes, keepdim);
  if (over.count == 0) return full(over.result, false, boolean, x.device());
  return no_gradient(max(truth_of(x.detach()), axes, keepdim));
}

Tensor detail::AllOf::operator()(const Tensor& x, const Axes& axes, bool keepdim) const {
  const OpScope op("all");
  const Reduction over(x.shape(), axes, keepdim);
  if (over.count == 0) return full(over.result, true, boolean, x.device());
  return no_gradient(min(truth_of(x.detach()), axes, keepdim));
}

}  // namespace quipu
