#include "quipu/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "quipu/ops/act.h"
#include "quipu/ops/attention_kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// Everything about one call but its tensors.
struct Call {
  Shape output;  // (b, h, n, e)
  bool causal;
  double scale;

  Shape rows() const { return {output[0], output[1], output[2]}; }
  /// Of the log-sum-exps and their rests.
  Shape sums() const { return {2, output[0], output[1], output[2]}; }
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

Call check_attention(const Tensor& q, const Tensor& k, const Tensor& v,
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

/// The log-sum-exps are only kept if they have room.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Call& call,
              const Tensor& sums) {
  const Tensor o = empty(call.output, q.dtype(), q.device());
  if (o.numel() == 0 && !sums.defined()) return o;
  const AttentionInputs in{q, k, v, call.causal, call.scale};
  const Shape parts = attention_forward_workspace(q.device().kind(), in);
  Tensor partial;
  if (!parts.empty()) partial = workspace(parts, compute_type(q.dtype()), q.device());
  attention_forward_kernel(in, o, halves_of(optional_view(sums)), optional_view(partial));
  return o;
}

/// v and o may be undefined where only v wants a gradient.
void undo(const Tensor& q, const Tensor& k, const View& v, const Call& call, const View& o,
          const LogSums& sums, const Tensor& d_o, const AttentionGrads& d) {
  if (!any_elements(d.q, d.k, d.v)) return;
  const DType wide = compute_type(q.dtype());
  Tensor mean, partial;
  const AttentionInputs in{q, k, v, call.causal, call.scale};
  if (d.q.wanted() || d.k.wanted()) {
    mean = workspace({attention_backward_workspace(q.device().kind(), in, d.q)}, wide, q.device());
  }
  const Shape parts = attention_partial_sums(q.device().kind(), in, d.q);
  if (!parts.empty()) partial = workspace(parts, wide, q.device());
  attention_backward_kernel(in, o, sums, d_o, {d.q, d.k, d.v}, optional_view(mean),
                            optional_view(partial));
  if (partial.defined()) add_into_kernel(d.q, partial);
}

struct AttentionRule {
  Saved q, k, v, o, sums;
  Call call;
  void backward(const Tensor& d_o, Grads& d) const {
    undo(q, k, optional_view(v), call, optional_view(o), halves_of(optional_view(sums)), d_o,
         {d[0], d[1], d[2]});
  }
};

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  const OpScope op("attention");
  const Call call = check_attention(q, k, v, options);
  const bool through_scores = q.requires_grad() || k.requires_grad();
  const bool wanted = through_scores || v.requires_grad();
  Tensor sums;
  if (wanted && recording()) {
    sums = empty(call.sums(), compute_type(q.dtype()), q.device(), Category::saved);
  }
  const Tensor o = attend(q, k, v, call, sums);
  return tie(o, {q, k, v},
             AttentionRule{save_if(wanted, q), save_if(wanted, k), save_if(through_scores, v),
                           save_if(through_scores, o), save_if(sums.defined(), sums), call});
}

Tensor detail::attention_composed(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionOptions& options) {
  const Call call = check_attention(q, k, v, options);
  const std::int64_t b = q.size(0), n = q.size(2), m = k.size(2), key_heads = k.size(1);
  const std::int64_t group = key_heads > 0 ? q.size(1) / key_heads : 1;
  const Tensor grouped = q.reshape({b, key_heads, group, n, q.size(3)});
  const Tensor keys = k.unsqueeze(2), values = v.unsqueeze(2);
  Tensor scores = matmul(grouped, keys.transpose(-1, -2)) * Scalar(call.scale);
  scores = scores.to(compute_type(q.dtype()));
  Tensor beyond;
  if (call.causal) {
    const Tensor last = arange(n, i64, q.device()).unsqueeze(1) + (m - n);
    beyond = gt(arange(m, i64, q.device()), last);
    scores = masked_fill(scores, beyond, -1e30);  // finite, for queries that attend to nothing
  }
  Tensor p = act_composed(scores, Act::softmax, -1);
  if (beyond.defined()) p = masked_fill(p, beyond, 0);
  return matmul(p.to(q.dtype()), values).reshape(call.output);
}

AttentionOutput detail::attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const AttentionOptions& options) {
  const OpScope op("attention_with_lse");
  const Call call = check_attention(q, k, v, options);
  const Tensor sums = empty(call.sums(), compute_type(q.dtype()), q.device());
  return {no_gradient(attend(q, k, v, call, sums)), sums[0], sums[1]};
}

void detail::attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                const AttentionOutput& output, const Tensor& d_o,
                                const AttentionGrads& d, const AttentionOptions& options) {
  const OpScope op("attention_backward");
  const Call call = check_attention(q, k, v, options);
  check_same_dtype("q", q, "d_o", d_o);
  check(d_o.shape() == call.output, "d_o has shape ", d_o.shape(), ", but the output has shape ",
        call.output);
  check(output.o.shape() == call.output && output.o.dtype() == q.dtype(),
        "o is not the output of attention_with_lse: it has shape ", output.o.shape(), " and is ",
        output.o.dtype());
  const auto check_sums = [&](const char* name, const Tensor& x) {
    check(x.shape() == call.rows() && x.dtype() == compute_type(q.dtype()) && x.is_contiguous(),
          name, " is not that of attention_with_lse: it has shape ", x.shape(), " and is ",
          x.dtype());
    check_same_device("q", q, name, x);
  };
  check_sums("lse", output.lse);
  if (output.rest.defined()) check_sums("rest", output.rest);
  check_same_device("q", q, "d_o", d_o);
  check_same_device("q", q, "o", output.o);
  check_grad("d_q", d.q, q.shape(), q.device());
  check_grad("d_k", d.k, k.shape(), q.device());
  check_grad("d_v", d.v, v.shape(), q.device());
  undo(q, k, v, call, output.o, {output.lse, optional_view(output.rest)}, d_o, d);
}

}  // namespace quipu
