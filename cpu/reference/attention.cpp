// Softmax attention: o = P v, P = softmax(scale q k^T), query by query on the keys that it attends
// to. With D = P * (d_o v^T - mean), where the mean of a query is o d_o, the gradients are
//   d_v = P^T d_o,  d_q = scale D k,  d_k = scale D^T q
// and those of k and v are summed over the heads of q that share them (ops/attention.h has the
// papers). Kernels may round P and D to the type of the operands: results are sums of terms of the
// sizes P |v|, P^T |d_o|, |D| |k| and |D|^T |q|.
#include <algorithm>

#include "quipu/cpu/reference/attend.h"
#include "quipu/ops/attention_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// Query t of head i, counted through the batch, and its keys: the first `keys` of head `key_head`.
struct Query {
  std::int64_t i, t, key_head, keys;
  std::int64_t row;  // counted through heads and batch
};

/// Calls f(query) for all queries.
template <class F>
void for_each_query(const AttentionInputs& in, F f) {
  const std::int64_t heads = in.q.size(0) * in.q.size(1), n = in.q.size(2), m = in.k.size(2);
  for (std::int64_t i = 0; i < heads; ++i) {
    const std::int64_t group = in.q.size(1) / in.k.size(1);
    for (std::int64_t t = 0; t < n; ++t) {
      const std::int64_t keys = in.causal ? std::clamp<std::int64_t>(t + 1 + m - n, 0, m) : m;
      f(Query{i, t, i / group, keys, i * n + t});
    }
  }
}

void attention_forward(const AttentionInputs& in, View o, const LogSums& sums, View) {
  Values q = read(in.q), k = read(in.k), v = read(in.v), out(o.shape), terms(o.shape);
  Array largest(o.size(0) * o.size(1) * o.size(2)), log_sum(largest.size());
  for_each_query(in, [&](const Query& at) {
    const auto keys = k.matrix(at.key_head).topRows(at.keys);
    const auto values = v.matrix(at.key_head).topRows(at.keys);
    const Vector scores = in.scale * keys * q.matrix(at.i).row(at.t).transpose();
    const Attended a = attend(scores, values);
    out.matrix(at.i).row(at.t) = a.o;
    terms.matrix(at.i).row(at.t) = attend(scores, values.cwiseAbs()).o;
    largest[at.row] = a.largest;
    log_sum[at.row] = a.log_sum;
  });
  store(Target::write_to(o), out, terms.flat);
  store(sums, largest, log_sum);
}

void attention_backward(const AttentionInputs& in, View o, const LogSums& sums, View d_o,
                        const AttentionInputGrads& d, View, View partial) {
  const Shape& value_shape = in.v.defined ? in.v.shape : d.v.view.shape;
  Values q = read(in.q), k = read(in.k), v = read(in.v), out = read(o), up = read(d_o);
  Values d_q(in.q.shape), d_k(in.k.shape), d_v(value_shape);
  Values q_terms(in.q.shape), k_terms(in.k.shape), v_terms(value_shape);
  const KeptLogSums kept(sums);
  for_each_query(in, [&](const Query& at) {
    const auto query = q.matrix(at.i).row(at.t), d_row = up.matrix(at.i).row(at.t);
    const auto keys = k.matrix(at.key_head).topRows(at.keys);
    const Vector weights = kept.weights(in.scale * keys * query.transpose(), at.row);
    d_v.matrix(at.key_head).topRows(at.keys) += weights * d_row;
    v_terms.matrix(at.key_head).topRows(at.keys) += weights * d_row.cwiseAbs();
    if (!d.q.wanted() && !d.k.wanted()) return;
    const auto values = v.matrix(at.key_head).topRows(at.keys);
    const double mean = out.matrix(at.i).row(at.t).dot(d_row);
    const Vector d_scores = in.scale * attend_back(weights, values, d_row, mean);
    d_q.matrix(at.i).row(at.t) = d_scores.transpose() * keys;
    d_k.matrix(at.key_head).topRows(at.keys) += d_scores * query;
    q_terms.matrix(at.i).row(at.t) = d_scores.cwiseAbs().transpose() * keys.cwiseAbs();
    k_terms.matrix(at.key_head).topRows(at.keys) += d_scores.cwiseAbs() * query.cwiseAbs();
  });
  if (partial.defined) {  // all of it in the first part
    Values parts(partial.shape);
    parts.flat.head(d_q.flat.size()) = d_q.flat;
    store(partial, parts);
  } else {
    store(d.q, d_q, q_terms.flat);
  }
  store(d.k, d_k, k_terms.flat);
  store(d.v, d_v, v_terms.flat);
}

}  // namespace
}  // namespace reference

void register_reference_attention() {
  attention_forward_kernel.provide(Variant::reference, reference::attention_forward);
  attention_backward_kernel.provide(Variant::reference, reference::attention_backward);
}

}  // namespace quipu::detail
