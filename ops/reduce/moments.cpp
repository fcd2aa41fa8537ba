// var and stddev. The mean is not rounded to the type of x: at 1e7 in f32 that would be off by as
// much as neighbouring numbers are apart.
#include <algorithm>
#include <cmath>

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

/// Of f32 the mean is f64; f32 holds that of bf16 and f16, and f64 has nothing wider.
DType type_of_mean(DType t) {
  return t == f32 ? f64 : compute_type(t);
}

/// d_x = factor (x - mean), where factor is 2 scale d_o for var, and scale d_o / o for stddev,
/// which has no slope where it is 0.
struct MomentRule {
  Saved x, mean;
  Saved deviation;  // of stddev only
  Reduction over;
  double scale;  // 1 / (n - correction)
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      const Tensor factor = workspace(over.kept, mean.get().dtype(), d_o.device());
      const auto to = Target::write_to(factor);
      if (deviation.defined()) {
        const View o = over.keep(deviation);
        pointwise_kernel(to, Pointwise::mul_div, {over.keep(d_o), scale, o});
        pointwise_kernel(to, Pointwise::where, {o, factor, 0.0});
      } else {
        pointwise_kernel(to, Pointwise::mul, {over.keep(d_o), 2 * scale});
      }
      pointwise_kernel(g, Pointwise::mul_difference, {factor, x.get(), mean.get()});
    });
  }
};

Tensor moment(const Tensor& x, const Axes& axes, int correction, bool keepdim, bool root) {
  check_floating("x", x.dtype());
  check(correction >= 0, "correction is ", correction, ", but must be at least 0");
  const Reduction over(x.shape(), axes, keepdim);
  const auto freedom = static_cast<double>(over.count - correction);
  const double scale = freedom > 0 ? 1 / freedom : std::nan("");
  const Tensor mean = workspace(over.kept, type_of_mean(x.dtype()), x.device());
  const double share = 1 / static_cast<double>(std::max<std::int64_t>(over.count, 1));
  sum_into(mean, Pointwise::copy, {x}, x, over, share);
  const Tensor o = empty(over.result, x.dtype(), x.device());
  if (root) {
    const Tensor variance = workspace(over.kept, mean.dtype(), x.device());
    sum_into(variance, Pointwise::square_difference, {x, mean}, x, over, scale);
    pointwise_kernel(Target::write_to(over.keep(o)), Pointwise::sqrt, {variance});
  } else {
    sum_into(o, Pointwise::square_difference, {x, mean}, x, over, scale);
  }
  const bool keeps = x.requires_grad();
  return tie(
      o, {x},
      MomentRule{save_if(keeps, x), save_if(keeps, mean), save_if(keeps && root, o), over, scale});
}

}  // namespace

Tensor var(const Tensor& x, const Axes& axes, int correction, bool keepdim) {
  const OpScope op("var");
  return moment(x, axes, correction, keepdim, false);
}

Tensor stddev(const Tensor& x, const Axes& axes, int correction, bool keepdim) {
  const OpScope op("stddev");
  return moment(x, axes, correction, keepdim, true);
}

}  // namespace quipu
