#include "quipu/ops/loss/cross_entropy.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/loss/cross_entropy_support.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;

void detail::check_cross_entropy(const char* name, const Tensor& x, const Tensor& targets,
                                 const CrossEntropyOptions& options) {
  check(options.label_smoothing >= 0 && options.label_smoothing <= 1, "label_smoothing is ",
        options.label_smoothing, ", but a share lies between 0 and 1");
  check_enum("reduction", options.reduction, LossReduction::none);
  check_floating(name, x.dtype());
  check_index("targets", targets);
  check_same_device(name, x, "targets", targets);
  check(x.dim() >= 1, name, " has shape ", x.shape(), ", but at least one dimension is wanted");
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  check(targets.shape() == rows, "targets has shape ", targets.shape(), ", but ", name,
        " has shape ", x.shape(), " and needs ", rows);
}

void detail::check_loss_gradient(const Tensor& d_o, const Tensor& targets,
                                 const CrossEntropyOptions& options) {
  const Shape wanted = options.reduction == LossReduction::none ? targets.shape() : Shape{};
  check_floating("d_o", d_o.dtype());
  check_same_device("d_o", d_o, "targets", targets);
  check(d_o.shape() == wanted, "d_o has shape ", d_o.shape(), ", but the loss has shape ", wanted);
}

Tensor detail::loss_scale(const Tensor& targets, std::int64_t classes, DType dtype,
                          const CrossEntropyOptions& options) {
  const Tensor scale = options.reduction == LossReduction::mean
                           ? workspace({}, compute_type(dtype), targets.device())
                           : Tensor();
  cross_entropy_targets_kernel(targets, optional_view(scale), classes, kernel_options(options));
  return scale;
}

Tensor detail::room_for_losses(const Tensor& targets, DType dtype,
                               const CrossEntropyOptions& options) {
  const bool is_result = options.reduction == LossReduction::none;
  return is_result ? empty(targets.shape(), compute_type(dtype), targets.device())
                   : workspace(targets.shape(), compute_type(dtype), targets.device());
}

Tensor detail::reduced_losses(const Tensor& losses, const Tensor& scale,
                              const CrossEntropyOptions& options) {
  if (options.reduction == LossReduction::none) return losses;
  const Tensor loss = empty({}, losses.dtype(), losses.device());
  const Grad into = Grad::write_to(loss);
  if (losses.numel() == 0) {
    fill_kernel(loss, 0.0);
  } else if (scale.defined()) {
    pointwise_sum_kernel(into, Pointwise::mul, {losses, scale}, losses.shape(), 1);
  } else {
    pointwise_sum_kernel(into, Pointwise::copy, {losses}, losses.shape(), 1);
  }
  return loss;
}

namespace {

struct CrossEntropyRule {
  Saved logits, targets, lse;
  CrossEntropyOptions options;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      const Tensor& z = logits;
      const Tensor scale = loss_scale(targets, z.size(-1), z.dtype(), options);
      cross_entropy_gradient_kernel(z, targets, lse, optional_view(scale), d_o, g,
                                    kernel_options(options));
    });
  }
};

Tensor class_weights(const Tensor& logp, const CrossEntropyOptions& options) {
  const std::int64_t classes = logp.size(-1);
  if (!options.weights.defined()) return ones({classes}, logp.dtype(), logp.device());
  check_same_device("logits", logp, "weights", options.weights);
  check(options.weights.shape() == Shape{classes}, "weights has shape ", options.weights.shape(),
        ", but there are ", classes, " classes");
  return options.weights.to(logp.dtype());
}

/// Targets that are probabilities.
Tensor soft_cross_entropy(const Tensor& logits, const Tensor& targets,
                          const CrossEntropyOptions& options) {
  check_floating("logits", logits.dtype());
  check_same_dtype("logits", logits, "targets", targets);
  check_same_device("logits", logits, "targets", targets);
  check(logits.dim() >= 1 && targets.shape() == logits.shape(), "targets is ", targets.dtype(),
        targets.shape(), ", so probabilities, which have the shape ", logits.shape(),
        " of logits; classes are i64 or i32");
  const Tensor logp = log_softmax(logits.to(compute_type(logits.dtype())), -1);
  const double s = options.label_smoothing, classes = static_cast<double>(logits.size(-1));
  Tensor p = targets.to(logp.dtype());
  if (s > 0) p = p * (1 - s) + s / classes;
  // What cannot be, and need not, counts nothing: 0 times infinity.
  const Tensor wanted = where(ne(p.detach(), 0), logp, 0);
  const Tensor losses = -sum(p * class_weights(logp, options) * wanted, -1);
  if (options.reduction == LossReduction::none) return losses;
  return options.reduction == LossReduction::sum || losses.numel() == 0 ? sum(losses)
                                                                        : mean(losses);
}

/// Classes with weights: those of the targets are also what a mean divides by.
Tensor weighted_cross_entropy(const Tensor& logits, const Tensor& targets,
                              const CrossEntropyOptions& options) {
  const Tensor counts = ne(targets, options.ignore_index.value_or(-1));
  const Tensor z = where(counts.unsqueeze(-1), logits.to(compute_type(logits.dtype())), 0);
  const Tensor logp = log_softmax(z, -1), weights = class_weights(logp, options);
  const Tensor index = where(counts, targets, zeros_like(targets));
  const Tensor weight_of_row =
      where(counts, index_select(weights, 0, index.flatten()).reshape(index.shape()), 0);
  const double s = options.label_smoothing, classes = static_cast<double>(logits.size(-1));
  Tensor losses = -(1 - s) * weight_of_row * gather(logp, -1, index.unsqueeze(-1)).squeeze(-1);
  if (s > 0) losses = losses - where(counts, sum(weights * logp, -1) * (s / classes), 0);
  if (options.reduction == LossReduction::none) return losses;
  if (options.reduction == LossReduction::sum) return sum(losses);
  const Tensor whole = sum(weight_of_row);
  return sum(losses) / where(ne(whole, 0), whole, 1);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  const OpScope op("cross_entropy");
  if (is_floating(targets.dtype())) {
    check(options.label_smoothing >= 0 && options.label_smoothing <= 1, "label_smoothing is ",
          options.label_smoothing, ", but a share lies between 0 and 1");
    check_enum("reduction", options.reduction, LossReduction::none);
    return soft_cross_entropy(logits, targets, options);
  }
  if (options.weights.defined()) {
    check_cross_entropy("logits", logits, targets, options);
    return weighted_cross_entropy(logits, targets, options);
  }
  check_cross_entropy("logits", logits, targets, options);
  const bool keeps = recording() && logits.requires_grad();
  const Tensor scale = loss_scale(targets, logits.size(-1), logits.dtype(), options);
  const Tensor lse = keeps ? empty(log_sums_of(targets), compute_type(logits.dtype()),
                                   logits.device(), Category::saved)
                           : Tensor();
  const Tensor losses = room_for_losses(targets, logits.dtype(), options);
  cross_entropy_rows_kernel(logits, targets, optional_view(lse), losses, kernel_options(options));
  return tie(reduced_losses(losses, scale, options), {logits},
             CrossEntropyRule{save_if(keeps, logits), save_if(keeps, targets), save_if(keeps, lse),
                              options});
}

Tensor detail::cross_entropy_composed(const Tensor& logits, const Tensor& targets,
                                      const CrossEntropyOptions& options) {
  check_cross_entropy("logits", logits, targets, options);
  const std::int64_t never = -1;  // no class either
  const Tensor counts = ne(targets, options.ignore_index.value_or(never));
  Tensor z = logits.to(compute_type(logits.dtype()));
  z = where(counts.unsqueeze(-1), z, 0);  // rows that are ignored may hold anything
  z = z - max(z.detach(), -1, true);      // differences first, as the loss is one
  const Tensor index = where(counts, targets, zeros_like(targets));
  const Tensor wanted = gather(z, -1, index.unsqueeze(-1)).squeeze(-1);
  const double s = options.label_smoothing;
  Tensor losses = logsumexp(z, -1) - (1 - s) * wanted;
  if (s > 0) losses = losses - s * mean(z, -1);
  losses = where(counts, losses, 0);
  if (options.reduction == LossReduction::none) return losses;
  if (options.reduction == LossReduction::sum) return sum(losses);
  return sum(losses) / maximum(sum(counts), 1).to(z.dtype());
}

void detail::cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& d_o,
                                    const Grad& d_logits, const CrossEntropyOptions& options) {
  const OpScope op("cross_entropy_backward");
  check_cross_entropy("logits", logits, targets, options);
  check_loss_gradient(d_o, targets, options);
  check_grad("d_logits", d_logits, logits.shape(), logits.device());
  const Tensor scale = loss_scale(targets, logits.size(-1), logits.dtype(), options);
  const Tensor lse = workspace(log_sums_of(targets), compute_type(logits.dtype()), logits.device());
  cross_entropy_rows_kernel(logits, targets, lse, {}, kernel_options(options));
  cross_entropy_gradient_kernel(logits, targets, lse, optional_view(scale), d_o, d_logits,
                                kernel_options(options));
}

}  // namespace quipu
