#include "quipu/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "quipu/ops/act.h"
#include "quipu/ops/arithmetic.h"
#include "quipu/ops/attention_kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/compare.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/matmul.h"
#include "quipu/ops/pointwise_support.h"

namespace quipu {
namespace {

/// Everything about one call but its tensors.
struct Plan {
  Shape output;  // (b, h, n, e)
  bool causal;
  double scale;

  Shape rows() const { return {output[0], output[1], output[2]}; }
};

void check_pair(const Tensor& q, const char* name, const Tensor& x) {
  check_same_dtype("q", q, name, x);
  check_same_device("q", q, name, x);
  check(x.dim() == 4, name, " has shape ", x.shape(), ", but (b, hk, m, ",
        name[0] == 'k' ? "d" : "e", ") is wanted");
  check(x.size(0) == q.size(0), name, " has shape ", x.shape(), ", but q has shape ", q.shape(),
        " (they must agree in b)");
}

void check_features(const char* name, const Tensor& x) {
  check(x.size(3) <= most_attention_features, name, " has shape ", x.shape(), ", but at most ",
        most_attention_features, " features are possible");
}

Plan check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                     const AttentionOptions& options) {
  check_floating("q", q.dtype());
  check(q.dim() == 4, "q has shape ", q.shape(), ", but (b, h, n, d) is wanted");
  check_pair(q, "k", k);
  check_pair(q, "v", v);
  check(k.size(3) == q.size(3), "k has shape ", k.shape(), ", but q has head dimension ", q.size(3),
        " (k and q must agree in it)");
  check(v.size(1) == k.size(1) && v.size(2) == k.size(2), "v has shape ", v.shape(),
        ", but k has shape ", k.shape(), " (they must agree in heads and tokens)");
  const std::int64_t heads = q.size(1), key_heads = k.size(1);
  check(key_heads > 0 ? heads % key_heads == 0 : heads == 0, "q has ", heads, " heads and k has ",
        key_heads, ", but the heads of q must fall into equal groups, one for each head of k");
  check_features("q", q);
  check_features("v", v);
  const double scale = options.scale.value_or(
      1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(q.size(3), 1))));
  check(std::isfinite(scale), "scale is ", scale, ", but a finite number is wanted");
  return {{q.size(0), heads, q.size(2), v.size(3)}, options.causal, scale};
}

/// The log-sum-exp is only kept if it has room.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Plan& plan,
              const Tensor& lse) {
  const Tensor o = empty(plan.output, q.dtype(), q.device());
  if (o.numel() == 0 && !lse.defined()) return o;
  attention_forward({q, k, v, plan.causal, plan.scale}, o, view_of(lse));
  return o;
}

/// v and o may be undefined where only v wants a gradient.
void undo(const Tensor& q, const Tensor& k, const View& v, const Plan& plan, const View& o,
          const Tensor& lse, const Tensor& d_o, const AttentionGrads& d) {
  if (!any_elements(d.q, d.k, d.v)) return;
  const DType wide = compute_type(q.dtype());
  Tensor mean, partial;
  if (d.q.wanted() || d.k.wanted()) mean = workspace(plan.rows(), wide, q.device());
  const std::int64_t parts = attention_parts(q.size(0), k.size(1), k.size(2));
  if (attention_needs_partial(parts, d.q, wide, q.device().kind())) {
    Shape shape = q.shape();
    shape.insert(0, parts);
    partial = workspace(shape, wide, q.device());
  }
  attention_backward_kernel({q, k, v, plan.causal, plan.scale}, o, lse, d_o, {d.q, d.k, d.v},
                            view_of(mean), view_of(partial));
  if (partial.defined()) add_into_kernel(d.q, partial);
}

struct AttentionRule {
  Saved q, k, v, o, lse;
  Plan plan;
  void backward(const Tensor& d_o, Grads& d) const {
    undo(q, k, view_of(v), plan, view_of(o), lse, d_o, {d[0], d[1], d[2]});
  }
};

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  const OpScope op("attention");
  const Plan plan = check_attention(q, k, v, options);
  const bool through_scores = q.requires_grad() || k.requires_grad();
  const bool wanted = through_scores || v.requires_grad();
  Tensor lse;
  if (wanted && recording()) {
    lse = empty(plan.rows(), compute_type(q.dtype()), q.device(), Category::saved);
  }
  const Tensor o = attend(q, k, v, plan, lse);
  return tie(o, {q, k, v},
             AttentionRule{save_if(wanted, q), save_if(wanted, k), save_if(through_scores, v),
                           save_if(through_scores, o), save_if(lse.defined(), lse), plan});
}

Tensor attention_composed(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options) {
  const Plan plan = check_attention(q, k, v, options);
  const std::int64_t b = q.size(0), n = q.size(2), m = k.size(2), key_heads = k.size(1);
  const std::int64_t group = key_heads > 0 ? q.size(1) / key_heads : 1;
  const Tensor grouped = q.reshape({b, key_heads, group, n, q.size(3)});
  const Tensor keys = k.unsqueeze(2), values = v.unsqueeze(2);
  Tensor scores = matmul(grouped, keys.transpose(-1, -2)) * Scalar(plan.scale);
  scores = scores.to(compute_type(q.dtype()));
  Tensor beyond;
  if (plan.causal) {
    const Tensor last = arange(n, i64, q.device()).unsqueeze(1) + (m - n);
    beyond = gt(arange(m, i64, q.device()), last);
    scores = masked_fill(scores, beyond, -1e30);  // finite, for queries that attend to nothing
  }
  Tensor p = act_composed(scores, Act::softmax, -1);
  if (beyond.defined()) p = masked_fill(p, beyond, 0);
  return matmul(p.to(q.dtype()), values).reshape(plan.output);
}

AttentionOutput attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options) {
  const OpScope op("attention_with_lse");
  const Plan plan = check_attention(q, k, v, options);
  const Tensor lse = empty(plan.rows(), compute_type(q.dtype()), q.device());
  return {no_gradient(attend(q, k, v, plan, lse)), lse};
}

void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOutput& output, const Tensor& d_o, const AttentionGrads& d,
                        const AttentionOptions& options) {
  const OpScope op("attention_backward");
  const Plan plan = check_attention(q, k, v, options);
  check_same_dtype("q", q, "d_o", d_o);
  check(d_o.shape() == plan.output, "d_o has shape ", d_o.shape(), ", but the output has shape ",
        plan.output);
  check(output.o.shape() == plan.output && output.o.dtype() == q.dtype(),
        "o is not the output of attention_with_lse: it has shape ", output.o.shape(), " and is ",
        output.o.dtype());
  check(output.lse.shape() == plan.rows() && output.lse.dtype() == compute_type(q.dtype()) &&
            output.lse.is_contiguous(),
        "lse is not that of attention_with_lse: it has shape ", output.lse.shape(), " and is ",
        output.lse.dtype());
  check_same_device("q", q, "d_o", d_o);
  check_same_device("q", q, "o", output.o);
  check_same_device("q", q, "lse", output.lse);
  const auto check_grad = [&](const char* name, const Grad& g, const Tensor& x) {
    if (!g.wanted()) return;
    check(g.view.shape == x.shape(), "the gradient of ", name, " has shape ", g.view.shape,
          ", but that has shape ", x.shape());
    check(g.view.device == x.device(), "the gradient of ", name, " is on ", g.view.device,
          ", but that is on ", x.device());
  };
  check_grad("q", d.q, q);
  check_grad("k", d.k, k);
  check_grad("v", d.v, v);
  undo(q, k, v, plan, output.o, output.lse, d_o, d);
}

}  // namespace quipu
