#include "quipu/ops/norm.h"

#include <cmath>
#include <utility>

#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/norm_kernels.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;
namespace {

/// Everything about one call but its tensors.
struct Call {
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

Call check_norm(const Tensor& x, const Shape& seen, bool centered, const Tensor& weight,
                const Tensor& bias, double eps) {
  check_floating("x", x.dtype());
  check(std::isfinite(eps) && eps >= 0, "eps is ", eps,
        ", but a finite number from 0 on is wanted");
  check_vector("weight", weight, x, seen[1] * seen[2]);
  check_vector("bias", bias, x, seen[1] * seen[2]);
  return {seen, centered, eps};
}

Call check_rows(const Tensor& x, bool centered, const Tensor& weight, const Tensor& bias,
                double eps) {
  check(x.dim() >= 1, "x has shape ", x.shape(), ", but at least one dimension is wanted");
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.dim(); ++d) rows *= x.size(d);
  return check_norm(x, {rows, 1, x.size(-1), 1}, centered, weight, bias, eps);
}

Call check_groups(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  check(x.dim() >= 2, "x has shape ", x.shape(), ", but (b, c, ...) is wanted");
  check(groups >= 1 && x.size(1) % groups == 0, "groups is ", groups, ", but the ", x.size(1),
        " channels of x ", x.shape(), " must fall into equal groups");
  std::int64_t inner = 1;
  for (int d = 2; d < x.dim(); ++d) inner *= x.size(d);
  const std::int64_t seen =
      x.size(1) > 0 ? groups : 1;  // no channels fall into any number of groups
  return check_norm(x, {x.size(0), seen, x.size(1) / groups, inner}, true, weight, bias, eps);
}

/// One number a channel, as (groups, channels).
View by_groups(View v, const Call& call) {
  if (!v.defined) return v;
  const std::int64_t stride = v.stride(0);
  v.shape = {call.seen[1], call.seen[2]};
  v.strides = {call.seen[2] * stride, stride};
  return v;
}

/// A statistic of every row.
Tensor statistic(const Tensor& x, const Call& call) {
  return empty({call.seen[0], call.seen[1]}, compute_type(x.dtype()), x.device(), Category::saved);
}

void run_backward(const Tensor& x, const View& weight, const Tensor& d_o, const View& mean,
                  const View& inverse, const Grad& d_x, const Grad& d_weight, const Grad& d_bias,
                  const Call& call) {
  if (!any_elements(d_x, d_weight, d_bias)) return;
  const DType wide = compute_type(x.dtype());
  const Tensor x_rows = dense(x), d_o_rows = dense(d_o);
  const DenseGrad d_rows(d_x);
  const std::int64_t sums = d_weight.wanted() + d_bias.wanted();
  const std::int64_t count =
      norm_backward_parts(x.device().kind(), call.seen[0], call.seen[2] * call.seen[3]);
  const Tensor parts =
      sums > 0 ? workspace({count, sums, call.seen[1], call.seen[2]}, wide, x.device()) : Tensor();
  norm_backward_kernel(seen_as(x_rows, call.seen), by_groups(weight, call),
                       seen_as(d_o_rows, call.seen), mean, inverse, d_rows.seen_as(call.seen),
                       {by_groups(d_weight.view, call), d_weight.add},
                       {by_groups(d_bias.view, call), d_bias.add}, optional_view(parts));
  d_rows.finish();
}

struct NormRule {
  Saved x, weight, mean, inverse;
  Call call;
  void backward(const Tensor& d_o, Grads& d) const {
    if (d.wants(0) || d.wants(1)) {
      return run_backward(x, optional_view(weight), d_o, optional_view(mean),
                          optional_view(inverse), d[0], d[1], d[2], call);
    }
    // Neither x nor the statistics were kept for the bias alone.
    d.with(2, [&](const Grad& g) {
      View channels = by_groups(g.view, call);
      channels.shape.push_back(1);
      channels.strides.push_back(1);
      const Tensor rows = dense(d_o);
      add_into_kernel({channels, g.add}, seen_as(rows, call.seen));
    });
  }
};

Tensor run_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, const Call& call) {
  const bool keeps = recording() && (x.requires_grad() || weight.requires_grad());
  const Tensor mean = keeps && call.centered ? statistic(x, call) : Tensor();
  const Tensor inverse = keeps ? statistic(x, call) : Tensor();
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  const Tensor rows = dense(x);
  if (o.numel() > 0 || keeps) {  // there may be any number of rows without elements
    norm_forward_kernel(seen_as(rows, call.seen), by_groups(optional_view(weight), call),
                        by_groups(optional_view(bias), call), seen_as(o, call.seen),
                        optional_view(mean), optional_view(inverse), call.centered, call.eps);
  }
  const bool keeps_weight = x.requires_grad() && weight.defined();
  return tie(o, {x, weight, bias},
             NormRule{save_if(keeps, x), save_if(keeps_weight, weight),
                      save_if(mean.defined(), mean), save_if(keeps, inverse), call});
}

void backward_checked(const Tensor& x, const Tensor& weight, const Tensor& d_o, const Grad& d_x,
                      const Grad& d_weight, const Grad& d_bias, const Call& call) {
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(d_o.shape() == x.shape(), "d_o has shape ", d_o.shape(), ", but x has shape ", x.shape());
  const Shape channels{call.seen[1] * call.seen[2]};
  check_grad("d_x", d_x, x.shape(), x.device());
  check_grad("d_weight", d_weight, channels, x.device());
  check_grad("d_bias", d_bias, channels, x.device());
  if (!any_elements(d_x, d_weight, d_bias)) return;
  const DType wide = compute_type(x.dtype());
  const Shape rows{call.seen[0], call.seen[1]};
  const Tensor inverse = workspace(rows, wide, x.device());
  const Tensor mean = call.centered ? workspace(rows, wide, x.device()) : Tensor();
  const Tensor x_rows = dense(x);
  norm_forward_kernel(seen_as(x_rows, call.seen), {}, {}, {}, optional_view(mean), inverse,
                      call.centered, call.eps);
  run_backward(x_rows, optional_view(weight), d_o, optional_view(mean), inverse, d_x, d_weight,
               d_bias, call);
}

Tensor scale_and_shift(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor scaled = weight.defined() ? x * weight : x;
  return bias.defined() ? scaled + bias : scaled;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const OpScope op("rms_norm");
  return run_forward(x, weight, {}, check_rows(x, false, weight, {}, eps));
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const OpScope op("layer_norm");
  return run_forward(x, weight, bias, check_rows(x, true, weight, bias, eps));
}

Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const OpScope op("group_norm");
  return run_forward(x, weight, bias, check_groups(x, groups, weight, bias, eps));
}

Tensor detail::rms_norm_composed(const Tensor& x, const Tensor& weight, double eps) {
  return scale_and_shift(x * rsqrt(mean(x * x, -1, true) + eps), weight, {});
}

Tensor detail::layer_norm_composed(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                   double eps) {
  const Tensor centered = x - mean(x, -1, true);
  return scale_and_shift(centered * rsqrt(mean(centered * centered, -1, true) + eps), weight, bias);
}

Tensor detail::group_norm_composed(const Tensor& x, std::int64_t groups, const Tensor& weight,
                                   const Tensor& bias, double eps) {
  const Call call = check_groups(x, groups, weight, bias, eps);
  const Tensor rows = x.reshape({call.seen[0], call.seen[1], call.seen[2] * call.seen[3]});
  const Tensor flat =
      layer_norm_composed(rows, {}, {}, eps).reshape({call.seen[0], x.size(1), call.seen[3]});
  const auto column = [](const Tensor& v) { return v.defined() ? v.unsqueeze(1) : v; };
  return scale_and_shift(flat, column(weight), column(bias)).reshape(x.shape());
}

void detail::rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o,
                               const Grad& d_x, const Grad& d_weight, double eps) {
  const OpScope op("rms_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, {}, check_rows(x, false, weight, {}, eps));
}

void detail::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o,
                                 const Grad& d_x, const Grad& d_weight, const Grad& d_bias,
                                 double eps) {
  const OpScope op("layer_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, d_bias, check_rows(x, true, weight, {}, eps));
}

void detail::group_norm_backward(const Tensor& x, std::int64_t groups, const Tensor& weight,
                                 const Tensor& d_o, const Grad& d_x, const Grad& d_weight,
                                 const Grad& d_bias, double eps) {
  const OpScope op("group_norm_backward");
  backward_checked(x, weight, d_o, d_x, d_weight, d_bias, check_groups(x, groups, weight, {}, eps));
}

}  // namespace quipu
