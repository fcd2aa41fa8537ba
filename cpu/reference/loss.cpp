// Cross entropy of rows of logits z with c classes, where the target t gets the probability
// 1 - smoothing and all classes share the rest:
//   loss = log-sum-exp z - (1 - smoothing) z_t - smoothing mean z
//   d_z = d_o scale (exp(z - log-sum-exp z) - smoothing / c - (1 - smoothing) [class is t])
// Rows whose target is ignored have neither loss nor gradient.
#include "quipu/core/error.h"
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/loss/cross_entropy_kernels.h"
#include "quipu/ops/reduce/log_sum_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

void cross_entropy_targets(View targets, View scale, std::int64_t classes,
                           CrossEntropyTargets options) {
  const WholeArray values = read_whole(targets);
  double count = 0;
  for (std::int64_t i = 0; i < values.size(); ++i) {
    if (options.ignores(values[i])) continue;
    check(values[i] >= 0 && values[i] < classes, "targets at ", index_of(i, targets.shape), " is ",
          values[i], ", but there are ", classes, " classes",
          options.ignored ? " (and " + std::to_string(*options.ignored) + " is ignored)" : "");
    ++count;
  }
  store(scale, Array::Constant(1, count > 0 ? 1 / count : 0));
}

void cross_entropy_rows(View logits, View targets, View lse, View losses,
                        CrossEntropyTargets options) {
  const WholeArray target = read_whole(targets);
  const double s = options.smoothing;
  Values z = read(logits), log_sums = read(lse);
  Array loss = Array::Zero(target.size());
  for (std::int64_t r = 0; r < target.size(); ++r) {
    if (options.ignores(target[r])) continue;
    const auto row = z.rows().row(r).array();
    const double largest = row.maxCoeff<Eigen::PropagateNaN>();
    const double shift = largest == -std::numeric_limits<double>::infinity() ? 0 : largest;
    const double log_sum = std::log(exp_of(row - shift).sum());
    if (lse.defined) {
      const double exact = largest + log_sum, rounded = rounded_to(lse.dtype, exact);
      log_sums.rows()(0, r) = rounded;
      log_sums.rows()(1, r) = std::isfinite(exact) ? (largest - rounded) + log_sum : 0;
    }
    // Differences first: a log-sum-exp can be far larger than the loss.
    loss[r] = log_sum;
    if (s < 1) loss[r] += (1 - s) * (largest - row[target[r]]);
    if (s > 0) loss[r] += s * (largest - row.mean());
  }
  store(lse, log_sums);
  store(losses, loss);
}

void cross_entropy_gradient(View logits, View targets, View lse, View scale, View d_o,
                            Grad d_logits, CrossEntropyTargets options) {
  const WholeArray target = read_whole(targets);
  const double s = options.smoothing, share = scale.defined ? read(scale).flat[0] : 1;
  const Array up = read(broadcast(d_o, targets.shape)).flat;
  Values z = read(logits), log_sums = read(lse), d_z(logits.shape);
  for (std::int64_t r = 0; r < target.size(); ++r) {
    if (options.ignores(target[r])) continue;
    const double rounded = log_sums.rows()(0, r), rest = log_sums.rows()(1, r);
    Array d = exp_of(z.rows().row(r).array() - rounded - rest) - s / static_cast<double>(z.last());
    d[target[r]] -= 1 - s;
    d_z.rows().row(r) = up[r] * share * d;
  }
  store(d_logits, d_z);
}

}  // namespace
}  // namespace reference

void register_reference_loss() {
  cross_entropy_targets_kernel.provide(Variant::reference, reference::cross_entropy_targets);
  cross_entropy_rows_kernel.provide(Variant::reference, reference::cross_entropy_rows);
  cross_entropy_gradient_kernel.provide(Variant::reference, reference::cross_entropy_gradient);
}

}  // namespace quipu::detail
