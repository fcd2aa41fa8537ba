#include "quipu/ops/loss/losses.h"

#include <algorithm>

#include "quipu/core/context.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/pointwise/activations.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu {
using namespace detail;
namespace {

/// Both in the type that losses are computed in.
struct Pair {
  Pair(const Tensor& a, const Tensor& b, const char* b_name, LossReduction reduction) {
    check_enum("reduction", reduction, LossReduction::none);
    check_floating("x", a.dtype());
    check_same_dtype("x", a, b_name, b);
    check_same_device("x", a, b_name, b);
    check(a.shape() == b.shape(), b_name, " has shape ", b.shape(), ", but x has shape ", a.shape(),
          " (both must agree; expand one of them if that is what you want)");
    x = a.to(compute_type(a.dtype()));
    y = b.to(compute_type(b.dtype()));
  }
  Tensor x, y;
};

Tensor reduced(const Tensor& losses, LossReduction reduction) {
  if (reduction == LossReduction::none) return losses;
  if (reduction == LossReduction::sum || losses.numel() == 0) return sum(losses);
  return mean(losses);
}

}  // namespace

Tensor l1_loss(const Tensor& x, const Tensor& y, LossReduction reduction) {
  const OpScope op("l1_loss");
  const Pair pair(x, y, "y", reduction);
  return reduced(abs(pair.x - pair.y), reduction);
}

Tensor huber_loss(const Tensor& x, const Tensor& y, double delta, LossReduction reduction) {
  const OpScope op("huber_loss");
  check(delta > 0, "delta is ", delta, ", but must be above 0");
  const Pair pair(x, y, "y", reduction);
  const Tensor distance = abs(pair.x - pair.y), near = minimum(distance, delta);
  return reduced(near * (distance - 0.5 * near), reduction);
}

Tensor bce_with_logits(const Tensor& x, const Tensor& y, LossReduction reduction) {
  const OpScope op("bce_with_logits");
  const Pair pair(x, y, "y", reduction);
  // Of a sure answer that is right softplus(x) and x y are large, and their difference is small.
  const Tensor right = (1 - pair.y) * pair.x;
  return reduced(relu(-pair.x) + right + softplus(-abs(pair.x)), reduction);
}

Tensor kl_div(const Tensor& x, const Tensor& p, LossReduction reduction) {
  const OpScope op("kl_div");
  const Pair pair(x, p, "p", reduction);
  const Tensor possible = pair.y.detach() > 0;
  const Tensor safe = where(possible, pair.y, 1);
  return reduced(where(possible, pair.y * (log(safe) - pair.x), 0), reduction);
}

Tensor nll_loss(const Tensor& x, const Tensor& targets, const NllOptions& options) {
  const OpScope op("nll_loss");
  check_enum("reduction", options.reduction, LossReduction::none);
  check_floating("x", x.dtype());
  check_index("targets", targets);
  check_same_device("x", x, "targets", targets);
  check(x.dim() >= 1, "x has shape ", x.shape(), ", but at least one dimension is wanted");
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  check(targets.shape() == rows, "targets has shape ", targets.shape(), ", but x has shape ",
        x.shape(), " and needs ", rows);
  const std::int64_t never = -1;  // no class either
  const Tensor counts = ne(targets, options.ignore_index.value_or(never));
  const Tensor index = where(counts, targets, zeros_like(targets));
  const Tensor wanted = gather(x.to(compute_type(x.dtype())), -1, index.unsqueeze(-1)).squeeze(-1);
  Tensor weights = counts.to(wanted.dtype());
  if (options.weights.defined()) {
    check_same_device("x", x, "weights", options.weights);
    check(options.weights.shape() == Shape{x.size(-1)}, "weights has shape ",
          options.weights.shape(), ", but there are ", x.size(-1), " classes");
    const Tensor of_rows =
        index_select(options.weights.to(wanted.dtype()), 0, index.flatten()).reshape(index.shape());
    weights = where(counts, of_rows, 0);
  }
  const Tensor losses = where(counts, -wanted * weights, 0);
  if (options.reduction == LossReduction::none) return losses;
  if (options.reduction == LossReduction::sum) return sum(losses);
  const Tensor whole = sum(weights);
  return sum(losses) / where(ne(whole, 0), whole, 1);
}

}  // namespace quipu
