// logsumexp and log_softmax.
#include <limits>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/kernels.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

struct LogsumexpRule {
  Saved x, o;  // o as it was before rounding to a reduced type
  Saved sum;   // of exp(x - o): 1 but for the rounding of o, which is large where o is
  Reduction over;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (g.view.numel() == 0) return;
      const Tensor share = workspace(over.kept, o.get().dtype(), d_o.device());
      pointwise_kernel(Grad::write_to(share), Pointwise::div, {over.keep(d_o), sum.get()});
      pointwise_kernel(g, Pointwise::mul_exp_difference, {share, x.get(), over.keep(o.get())});
    });
  }
};

/// The largest entry over all reduced dimensions, kept finite so that differences to it are
/// defined.
Tensor finite_maximum(const Tensor& x, const Reduction& over) {
  Tensor largest = x;
  Shape shape = x.shape();
  for (int axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == over.kept[axis]) continue;
    shape[axis] = 1;
    const Tensor next = workspace(shape, x.dtype(), x.device());
    extreme_kernel(largest, next, View(), axis, true);
    largest = next;
  }
  const Tensor finite = workspace(shape, compute_type(x.dtype()), x.device());
  const double bound =
      x.dtype() == f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  pointwise_kernel(Grad::write_to(finite), Pointwise::clamp, {largest, -bound, bound});
  return finite;
}

/// d_x = d_o - e^(x - largest) / total * sum of d_o.
struct LogSoftmaxRule {
  Saved x, largest, total;
  Reduction over;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (d_o.numel() == 0) return;
      const Tensor share = workspace(over.kept, total.get().dtype(), d_o.device());
      sum_into(share, Pointwise::copy, {d_o}, d_o, over, -1);
      pointwise_kernel(Target::write_to(share), Pointwise::div, {share, total.get()});
      pointwise_kernel(g, Pointwise::copy, {d_o});
      pointwise_kernel(Grad{g.view, true}, Pointwise::mul_exp_difference,
                       {share, x.get(), largest.get()});
    });
  }
};

}  // namespace

Tensor logsumexp(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("logsumexp");
  check_floating("x", x.dtype());
  const Reduction over(x.shape(), axes, keepdim);
  const DType wide = compute_type(x.dtype());
  const Tensor exact = empty(over.result, wide, x.device());
  const bool keeps = recording() && x.requires_grad();
  const Tensor sum = keeps ? empty(over.kept, wide, x.device(), Category::saved) : Tensor();
  if (over.count == 0) {
    fill_kernel(exact, -std::numeric_limits<double>::infinity());
  } else if (exact.numel() > 0) {
    const Tensor largest = finite_maximum(x, over);
    const Tensor total = workspace(over.kept, wide, x.device());
    sum_into(total, Pointwise::exp_difference, {x, largest}, x, over, 1);
    if (keeps) copy_kernel(sum, total);
    pointwise_kernel(Grad::write_to(total), Pointwise::log, {total});
    pointwise_kernel(Grad::write_to(over.keep(exact)), Pointwise::add, {largest, total});
    if (keeps) {
      pointwise_kernel(Grad::write_to(sum), Pointwise::mul_exp_difference,
                       {sum, largest, over.keep(exact)});
    }
  }
  const Tensor o = wide == x.dtype() ? exact : empty(over.result, x.dtype(), x.device());
  if (wide != x.dtype()) copy_kernel(o, exact);
  return tie(o, {x},
             LogsumexpRule{save_if(keeps, x), save_if(keeps, exact), save_if(keeps, sum), over});
}

Tensor log_softmax(const Tensor& x, int dim) {
  const OpScope op("log_softmax");
  if (x.dim() == 0) return log_softmax(x.reshape({1}), dim).reshape({});
  check_floating("x", x.dtype());
  const Reduction over(x.shape(), wrap_dim(dim, x.dim()), true);
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  if (o.numel() == 0) return tie(o, {x}, LogSoftmaxRule{{}, {}, {}, over});
  const Tensor largest = finite_maximum(x, over);
  const Tensor total = workspace(over.kept, f64, x.device());
  sum_into(total, Pointwise::exp_difference, {x, largest}, x, over, 1);
  // Rounded after the logarithm, which may be near 0.
  const Tensor log_total = workspace(over.kept, largest.dtype(), x.device());
  pointwise_kernel(Target::write_to(log_total), Pointwise::log, {total});
  pointwise_kernel(Target::write_to(o), Pointwise::sub_sub, {x, largest, log_total});
  const bool keeps = recording() && x.requires_grad();
  return tie(
      o, {x},
      LogSoftmaxRule{save_if(keeps, x), save_if(keeps, largest), save_if(keeps, total), over});
}

}  // namespace quipu
