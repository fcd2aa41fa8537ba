#include "quipu/ops/loss/linear_cross_entropy.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/loss/cross_entropy_support.h"
#include "quipu/ops/loss/linear_cross_entropy_kernels.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/matmul/support.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& targets,
                  const CrossEntropyOptions& options, const Tensor& bias) {
  check(!options.weights.defined(),
        "options.weights are given, which only cross_entropy knows; use it with linear()");
  check_cross_entropy("x", x, targets, options);
  check_same_dtype("x", x, "weight", weight);
  check_same_device("x", x, "weight", weight);
  check(weight.dim() == 2 && weight.size(1) == x.size(-1), "weight has shape ", weight.shape(),
        ", but x has shape ", x.shape(), " and needs (classes, ", x.size(-1), ")");
  if (!bias.defined()) return;
  check_same_dtype("x", x, "bias", bias);
  check_same_device("x", x, "bias", bias);
  check(bias.shape() == Shape{weight.size(0)}, "bias has shape ", bias.shape(), ", but there are ",
        weight.size(0), " classes");
}

/// Some rows of a view.
View rows_of(View v, std::int64_t first, std::int64_t n) {
  v.data = static_cast<char*>(v.data) +
           first * v.stride(0) * static_cast<std::int64_t>(size_of(v.dtype));
  v.shape[0] = n;
  return v;
}

/// The inputs as matrices, and their logits a few rows at a time.
class Parts {
 public:
  Parts(const Tensor& x, const Tensor& weight, const Tensor& targets, const Tensor& bias)
      : x_(dense(x)),
        weight_(dense(weight)),
        targets_(dense(targets)),
        bias_(bias),
        rows_(targets.numel()),
        step_(rows_of_logits(rows_, weight.size(0))),
        logits_(workspace({step_, weight.size(0)}, compute_type(x.dtype()), x.device())) {}

  /// Calls f(first, n, logits) for all rows; logits is (n, classes), of the compute type.
  template <class F>
  void each(F f) const {
    for (std::int64_t first = 0; first < rows_; first += step_) {
      const std::int64_t n = std::min(step_, rows_ - first);
      const View logits = rows_of(logits_, 0, n);
      if (bias_.defined()) {
        View repeated = bias_;
        repeated.shape = logits.shape;
        repeated.strides = {0, bias_.strides()[0]};
        copy_kernel(logits, repeated);
      }
      multiply(x(first, n), transposed(weight_), {logits, bias_.defined()});
      f(first, n, logits);
    }
  }

  View x(std::int64_t first, std::int64_t n) const {
    return rows_of(seen_as(x_, {rows_, x_.size(-1)}), first, n);
  }
  View targets(std::int64_t first, std::int64_t n) const { return part(targets_, first, n); }
  /// One number a row.
  View part(const Tensor& values, std::int64_t first, std::int64_t n) const {
    return rows_of(seen_as(values, {rows_}), first, n);
  }
  /// Two numbers a row.
  View log_sums(const Tensor& values, std::int64_t first, std::int64_t n) const {
    View v = values;
    v.data = static_cast<char*>(v.data) + first * static_cast<std::int64_t>(size_of(v.dtype));
    v.shape[1] = n;
    return v;
  }
  const Tensor& weight() const { return weight_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t step() const { return step_; }
  bool several() const { return rows_ > step_; }

 private:
  Tensor x_, weight_, targets_, bias_;
  std::int64_t rows_, step_;
  Tensor logits_;
};

/// The gradients that are wanted, added to part by part.
class PartGrads {
 public:
  PartGrads(const Parts& parts, const Grad& d_x, const Grad& d_weight, const Grad& d_bias,
            const CrossEntropyOptions& options)
      : parts_(parts),
        d_x_(d_x),
        d_weight_(d_weight, sums(d_weight)),
        d_bias_(d_bias, sums(d_bias)),
        ignored_(options.ignore_index) {
    if (!d_weight.wanted() || !ignored_ || parts.rows() == 0) return;
    const View x = parts.x(0, parts.step());
    counts_ = workspace({parts.step(), 1}, boolean, x.device);
    const bool has_room = d_x.wanted() && !d_x_.grad().add && d_x_.grad().view.dtype == x.dtype;
    if (!has_room) x_ = workspace(x.shape, x.dtype, x.device);
  }

  bool wants_bias() const { return d_bias_.wanted(); }
  void add_bias(std::int64_t first, const View& d_logits) const {
    add_into_kernel(sum_of(d_bias_, first), d_logits);
  }
  /// Adds the products of the gradient of the logits of some rows.
  void add_products(std::int64_t first, std::int64_t n, const View& d_logits) const {
    if (d_weight_.wanted()) {
      multiply(transposed(d_logits), counting_x(first, n), sum_of(d_weight_, first));
    }
    if (d_x_.wanted()) multiply(d_logits, parts_.weight(), rows_of_x(first, n));
  }
  void finish() const {
    for (const DenseGrad* g : {&d_x_, &d_weight_, &d_bias_}) {
      // Without any rows, nothing was written yet.
      if (g->wanted() && parts_.rows() == 0 && !g->grad().add) fill_kernel(g->grad().view, 0.0);
      g->finish();
    }
  }

 private:
  /// x with zeros in rows that are ignored: these may hold infinity or NaN, and 0 times that would
  /// reach the gradient of the weight. It lies where the gradient of x will be, if that is
  /// possible.
  View counting_x(std::int64_t first, std::int64_t n) const {
    const View x = parts_.x(first, n);
    if (!counts_.defined()) return x;
    const View counts = rows_of(counts_, 0, n);
    const View result = x_.defined() ? rows_of(x_, 0, n) : rows_of_x(first, n).view;
    View targets = parts_.targets(first, n);
    targets.shape = counts.shape;
    targets.strides = {targets.stride(0), 0};
    pointwise_kernel(Grad::write_to(counts), Pointwise::ne, {targets, Scalar(*ignored_)});
    pointwise_kernel(Grad::write_to(result), Pointwise::where, {counts, x, Scalar(0)});
    return result;
  }
  Grad rows_of_x(std::int64_t first, std::int64_t n) const {
    const Grad all = d_x_.seen_as({parts_.rows(), parts_.weight().size(1)});
    return {rows_of(all.view, first, n), all.add};
  }
  /// Sums over several parts are rounded once, at the end.
  bool sums(const Grad& g) const { return parts_.several() && is_reduced(g.view.dtype); }
  static Grad sum_of(const DenseGrad& g, std::int64_t first) {
    return {g.grad().view, g.grad().add || first > 0};
  }

  const Parts& parts_;
  DenseGrad d_x_, d_weight_, d_bias_;
  std::optional<std::int64_t> ignored_;
  Tensor counts_, x_;  // of a part, where rows may be ignored and they have no other place
};

void run_backward(const Parts& parts, const Tensor& lse, const Tensor& scale, const Tensor& d_o,
                  const PartGrads& d, const CrossEntropyOptions& options) {
  const DType dtype = parts.weight().dtype();
  const Tensor up = dense(d_o);
  // Products take operands of one type; the sum for the bias is rounded only once.
  const bool rounds = is_reduced(dtype), first_exact = rounds && d.wants_bias();
  const Tensor rounded =
      rounds ? workspace({parts.step(), parts.weight().size(0)}, dtype, lse.device()) : Tensor();
  parts.each([&](std::int64_t first, std::int64_t n, const View& logits) {
    const bool each_row = options.reduction == LossReduction::none;
    const View d_logits = rounds ? rows_of(rounded, 0, n) : logits;
    const View written = first_exact ? logits : d_logits;
    cross_entropy_gradient_kernel(logits, parts.targets(first, n), parts.log_sums(lse, first, n),
                                  optional_view(scale),
                                  each_row ? parts.part(up, first, n) : up.view(),
                                  Grad::write_to(written), kernel_options(options));
    if (d.wants_bias()) d.add_bias(first, written);
    if (first_exact) copy_kernel(d_logits, written);
    d.add_products(first, n, d_logits);
  });
  d.finish();
}

struct LinearCrossEntropyRule {
  Saved x, weight, bias, targets, lse;
  CrossEntropyOptions options;
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor& w = weight;
    const Tensor scale = loss_scale(targets, w.size(0), w.dtype(), options);
    const Parts parts(x, w, targets, bias.defined() ? bias.get() : Tensor());
    run_backward(parts, lse, scale, d_o, {parts, d[0], d[1], d[2], options}, options);
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, const Tensor& bias) {
  const OpScope op("linear_cross_entropy");
  check_linear(x, weight, targets, options, bias);
  const bool keeps =
      recording() && (x.requires_grad() || weight.requires_grad() || bias.requires_grad());
  const DType wide = compute_type(x.dtype());
  const Tensor scale = loss_scale(targets, weight.size(0), wide, options);
  const Tensor lse =
      keeps ? empty(log_sums_of(targets), wide, x.device(), Category::saved) : Tensor();
  const Tensor losses = room_for_losses(targets, wide, options);
  {
    const Parts parts(x, weight, targets, bias);
    parts.each([&](std::int64_t first, std::int64_t n, const View& logits) {
      cross_entropy_rows_kernel(logits, parts.targets(first, n),
                                keeps ? parts.log_sums(lse, first, n) : View(),
                                parts.part(losses, first, n), kernel_options(options));
    });
  }
  return tie(reduced_losses(losses, scale, options), {x, weight, bias},
             LinearCrossEntropyRule{save_if(keeps, x), save_if(keeps, weight),
                                    save_if(keeps && bias.defined(), bias), save_if(keeps, targets),
                                    save_if(keeps, lse), options});
}

Tensor detail::linear_cross_entropy_composed(const Tensor& x, const Tensor& weight,
                                             const Tensor& targets,
                                             const CrossEntropyOptions& options,
                                             const Tensor& bias) {
  Tensor counting = x;  // rows that are ignored may hold anything
  if (options.ignore_index) {
    counting = where(ne(targets, *options.ignore_index).unsqueeze(-1), x, 0);
  }
  const Tensor logits = matmul(counting, weight.t());
  return cross_entropy_composed(bias.defined() ? logits + bias : logits, targets, options);
}

void detail::linear_cross_entropy_backward(const Tensor& x, const Tensor& weight,
                                           const Tensor& targets, const Tensor& d_o,
                                           const Grad& d_x, const Grad& d_weight,
                                           const Grad& d_bias, const CrossEntropyOptions& options,
                                           const Tensor& bias) {
  const OpScope op("linear_cross_entropy_backward");
  check_linear(x, weight, targets, options, bias);
  check_loss_gradient(d_o, targets, options);
  check_grad("d_x", d_x, x.shape(), x.device());
  check_grad("d_weight", d_weight, weight.shape(), x.device());
  check_grad("d_bias", d_bias, {weight.size(0)}, x.device());
  const Tensor scale = loss_scale(targets, weight.size(0), x.dtype(), options);
  const Tensor lse = workspace(log_sums_of(targets), compute_type(x.dtype()), x.device());
  const Parts parts(x, weight, targets, bias);
  parts.each([&](std::int64_t first, std::int64_t n, const View& logits) {
    cross_entropy_rows_kernel(logits, parts.targets(first, n), parts.log_sums(lse, first, n), {},
                              kernel_options(options));
  });
  run_backward(parts, lse, scale, d_o, {parts, d_x, d_weight, d_bias, options}, options);
}

}  // namespace quipu
