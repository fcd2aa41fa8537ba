#include "quipu/ops/norm.h"

#include <cmath>
#include <utility>

#include "quipu/ops/arithmetic.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/norm_kernels.h"
#include "quipu/ops/pointwise_support.h"
#include "quipu/ops/reduce.h"
#include "quipu/ops/unary.h"

namespace quipu {
namespace {

/// Everything about one call but its tensors.
struct Plan {
  Shape seen;  // (outer, groups, channels, inner), as the kernels see x
  bool centered;
  double eps;
};

void check_vector(const char* name, const Tensor& v, const Tensor& x, std::int64_t size) {
  if (!v.defined()) return;
  check_same_dtype("x", x, name, v);
  check_same_device("x", x, name, v);
  check(v.shape() == Shape{size}, name, " has shape ", v.shape(), ", but x has shape ", x.shape(),
        " and needs ", Shape{size});
}

Plan plan_norm(const Tensor& x, const Shape& seen, bool centered, const Tensor& weight,
               const Tensor& bias, double eps) {
  check_floating("x", x.dtype());
  check(std::isfinite(eps) && eps >= 0, "eps is ", eps,
        ", but a finite number from 0 on is wanted");
  check_vector("weight", weight, x, seen[1] * seen[2]);
  check_vector("bias", bias, x, seen[1] * seen[2]);
  return {seen, centered, eps};
}

Plan plan_rows(const Tensor& x, bool centered, const Tensor& weight, const Tensor& bias,
               double eps) {
  check(x.dim() >= 1, "x has shape ", x.shape(), ", but at least one dimension is wanted");
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return plan_norm(x, {rows, 1, x.size(-1), 1}, centered, weight, bias, eps);
}

Plan plan_groups(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                 double eps) {
  check(x.dim() >= 2, "x has shape ", x.shape(), ", but (b, c, ...) is wanted");
  check(groups >= 1 && x.size(1) % groups == 0, "groups is ", groups, ", but the ", x.size(1),
        " channels of x ", x.shape(), " must fall into equal groups");
  std::int64_t inner = 1;
  for (int d = 2; d < x.dim(); ++d) inner *= x.size(d);
  const std::int64_t seen =
      x.size(1) > 0 ? groups : 1;  // no channels fall into any number of groups
  return plan_norm(x, {x.size(0), seen, x.size(1) / groups, inner}, true, weight, bias, eps);
}

/// One number a channel, as (groups, channels).
View by_groups(View v, const Plan& plan) {
  if (!v.defined) return v;
  const std::int64_t stride = v.stride(0);
  v.shape = {plan.seen[1], plan.seen[2]};
  v.strides = {plan.seen[2] * stride, stride};
  return v;
}

/// A statistic of every row.
Tensor statistic(const Tensor& x, const Plan& plan) {
  return empty({plan.seen[0], plan.seen[1]}, compute_type(x.dtype()), x.device(), Category::saved);
}

void run_backward(const Tensor& x, const View& weight, const Tensor& d_o, const View& mean,
                  const View& inverse, const Grad& d_x, const Grad& d_weight, const Grad& d_bias,
                  const Plan& plan) {
  if (!any_elements(d_x, d_weight, d_bias)) return;
  const DType wide = compute_type(x.dtype());
  const Tensor x_rows = dense(x), d_o_rows = dense(d_o);
  const DenseGrad d_rows(d_x);
  const std::int64_t sums = d_weight.wanted() + d_bias.wanted();
  const Tensor parts = sums > 0
                           ? workspace({norm_parts(plan.seen[0]), sums, plan.seen[1], plan.seen[2]},
                                       wide, x.device())
                           : Tensor();
  norm_backward(seen_as(x_rows, plan.seen), by_groups(weight, plan), seen_as(d_o_rows, plan.seen),
                mean, inverse, d_rows.seen_as(plan.seen),
                {by_groups(d_weight.view, plan), d_weight.add},
                {by_groups(d_bias.view, plan), d_bias.add}, view_of(parts));
  d_rows.finish();
}

struct NormRule {
  Saved x, weight, mean, inverse;
  Plan plan;
  void backward(const Tensor& d_o, Grads& d) const {
    if (d.wants(0) || d.wants(1)) {
      return run_backward(x, view_of(weight), d_o, view_of(mean), view_of(inverse), d[0], d[1],
                          d[2], plan);
    }
    // Neither x nor the statistics were kept for the bias alone.
    d.with(2, [&](const Grad& g) {
      View channels = by_groups(g.view, plan);
      channels.shape.push_back(1);
      channels.strides.push_back(1);
      const Tensor rows = dense(d_o);
      add_into_kernel({channels, g.add}, seen_as(rows, plan.seen));
    });
  }
};

Tensor run_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Plan& plan) {
  const bool keeps = recording() && (x.requires_grad() || weight.requires_grad());
  const Tensor mean = keeps && plan.centered ? statistic(x, plan) : Tensor();
  const Tensor inverse = keeps ? statistic(x, plan) : Tensor();
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  const Tensor rows = dense(x);
  if (o.numel() > 0 || keeps) {  // there may be any number of rows without elements
    norm_forward(seen_as(rows, plan.seen), by_groups(view_of(weight), plan),
                 by_groups(view_of(bias), plan), seen_as(o, plan.seen), view_of(mean),
                 view_of(inverse), plan.centered, plan.eps);
  }
  const bool keeps_weight = x.requires_grad() && weight.defined();
  return tie(o, {x, weight, bias},
             NormRule{save_if(keeps, x), save_if(keeps_weight, weight),
                      save_if(mean.defined(), mean), save_if(keeps, inverse), plan});
}

void backward_checked(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                      const Grad& d_weight, const Grad& d_bias, const Plan& plan) {
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(d_o.shape() == x.shape(), "d_o has shape ", d_o.shape(), ", but x has shape ", x.shape());
  const auto check_grad = [&](const char* name, const Grad& g, const Shape& shape) {
    check(!g.wanted() || g.view.shape == shape, name, " has shape ", g.view.shape,
          ", but its tensor has shape ", shape);
  };
  const Shape channels{plan.seen[1] * plan.seen[2]};
  check_grad("d_x", d_x, x.shape());
  check_grad("d_weight", d_weight, channels);
  check_grad("d_bias", d_bias, channels);
  if (!any_elements(d_x, d_weight, d_bias)) return;
  const DType wide = compute_type(x.dtype());
  const Shape rows{plan.seen[0], plan.seen[1]};
  const Tensor inverse = workspace(rows, wide, x.device());
  const Tensor mean = plan.centered ? workspace(rows, wide, x.device()) : Tensor();
  const Tensor x_rows = dense(x);
  norm_forward(seen_as(x_rows, plan.seen), {}, {}, {}, view_of(mean), inverse, plan.centered,
               plan.eps);
  run_backward(x_rows, view_of(weight), d_o, view_of(mean), inverse, d_x, d_weight, d_bias, plan);
}

Tensor scale_and_shift(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor scaled = weight.defined() ? x * weight : x;
  return bias.defined() ? scaled + bias : scaled;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const OpScope op("rms_norm");
  return run_forward(x, weight, {}, plan_rows(x, false, weight, {}, eps));
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const OpScope op("layer_norm");
  return run_forward(x, weight, bias, plan_rows(x, true, weight, bias, eps));
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const OpScope op("group_norm");
  return run_forward(x, weight, bias, plan_groups(x, groups, weight, bias, eps));
}

Tensor rms_norm_composed(const Tensor& x, const Tensor& weight, double eps) {
  return scale_and_shift(x * rsqrt(mean(x * x, -1, true) + eps), weight, {});
}

Tensor layer_norm_composed(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor centered = x - mean(x, -1, true);
  return scale_and_shift(centered * rsqrt(mean(centered * centered, -1, true) + eps), weight, bias);
}

Tensor group_norm_composed(const Tensor& x, std::int64_t groups, const Tensor& weight,
                           const Tensor& bias, double eps) {
  const Plan plan = plan_groups(x, groups, weight, bias, eps);
  const Tensor rows = x.reshape({plan.seen[0], plan.seen[1], plan.seen[2] * plan.seen[3]});
  const Tensor flat =
      layer_norm_composed(rows, {}, {}, eps).reshape({plan.seen[0], x.size(1), plan.seen[3]});
  const auto column = [](const Tensor& v) { return v.defined() ? v.unsqueeze(1) : v; };
  return scale_and_shift(flat, column(weight), column(bias)).reshape(x.shape());
}

void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                       const Grad& d_weight, double eps) {
  const OpScope op("rms_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, {}, plan_rows(x, false, weight, {}, eps));
}

void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                         const Grad& d_weight, const Grad& d_bias, double eps) {
  const OpScope op("layer_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, d_bias, plan_rows(x, true, weight, {}, eps));
}

void group_norm_backward(const Tensor& x, std::int64_t groups, const Tensor& weight,
                         const Tensor& d_o, const Grad& d_x, const Grad& d_weight,
                         const Grad& d_bias, double eps) {
  const OpScope op("group_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, d_bias, plan_groups(x, groups, weight, {}, eps));
}

}  // namespace quipu
