#include "golden_sizes.h"

#include <cmath>

#include "quipu/ops/join.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"

namespace quipu::testing {
using namespace detail;
namespace {

/// The two halves of the features, added.
Tensor added_halves(const Tensor& x) {
  const std::int64_t half = x.size(-1) / 2;
  return x.slice(-1, 0, half) + x.slice(-1, half);
}

Tensor through_act(const Tensor& x, Act act, std::optional<int> dim, const Tensor& d) {
  const Tensor s = 1 / (1 + exp(-x));
  switch (act) {
    case Act::none: return d;
    case Act::relu: return where(lt(x, 0), 0, d);
    case Act::sigmoid: return d * s * (1 - s);
    case Act::silu: return d * s * (1 + abs(x) * (1 - s));
    case Act::softmax: break;
  }
  if (x.size(*dim) == 0) return d;
  const Tensor y = act_composed(x, act, dim);
  return y * (d + sum(y * d, *dim, true));
}

}  // namespace

Tensor SizedRows::forward(const Tensor& x) const {
  const Tensor y = abs(act_composed(x, act, dim));
  if (kind == LrpeKind::none) return y;
  if (kind == LrpeKind::cosine) return cat({y, y}, -1);
  const Tensor both = added_halves(y);
  return cat({both, both}, -1);
}

Tensor SizedRows::backward(const Tensor& x, const Tensor& d_o) const {
  Tensor d = d_o;
  if (kind != LrpeKind::none) d = added_halves(d);
  if (kind == LrpeKind::rotate) d = cat({d, d}, -1);
  return through_act(x, act, dim, d);
}

Sizes sizes_of_rows(const SizedRows& rows, const Tensor& x, const Tensor& d_o) {
  return {rows.forward(x), rows.backward(x, abs(d_o))};
}

Sizes sizes_of_flao(const FlaoOptions& options, const std::vector<Tensor>& in, const Tensor& d_o) {
  const LrpeKind kind = options.lrpe == FlaoLrpe::none     ? LrpeKind::none
                        : options.lrpe == FlaoLrpe::rotate ? LrpeKind::rotate
                                                           : LrpeKind::cosine;
  const SizedRows rows[] = {{kind, options.q_act, options.q_dim},
                            {kind, options.k_act, options.k_dim},
                            {LrpeKind::none, options.v_act, options.v_dim},
                            {LrpeKind::none, options.g_act, options.g_dim}};
  Tensor encoded[4];
  for (std::size_t i = 0; i < 4; ++i) encoded[i] = rows[i].forward(in[i]);
  const auto& [q, k, v, g] = encoded;
  const Tensor kv = matmul(k.transpose(-1, -2), v), qkv = matmul(q, kv);
  const Tensor d = abs(d_o) * g, d_kv = matmul(q.transpose(-1, -2), d);
  const Tensor gradients[] = {matmul(d, kv.transpose(-1, -2)), matmul(v, d_kv.transpose(-1, -2)),
                              matmul(k, d_kv), abs(d_o) * qkv};
  Sizes sizes{g * qkv};
  for (std::size_t i = 0; i < 4; ++i) sizes.push_back(rows[i].backward(in[i], gradients[i]));
  return sizes;
}

Sizes sizes_of_tpa(const TpaOptions& options, const std::vector<Tensor>& in, const Tensor& d_o) {
  const std::int64_t b = in[1].size(0), m = in[1].size(1);
  const auto ranked = [](const Tensor& x) { return x.dim() == 3 ? x.unsqueeze(2) : x; };
  const Tensor aq = in[0].squeeze(1), bq = in[3].squeeze(1);  // (b, h, r), (b, r, d)
  const Tensor ak = ranked(in[1]), av = ranked(in[2]), bk = ranked(in[4]), bv = ranked(in[5]);
  const auto scale = [](const std::optional<double>& given, std::int64_t n, double power) {
    return given.value_or(std::pow(static_cast<double>(std::max<std::int64_t>(n, 1)), power));
  };
  const double of_scores = scale(options.scale, bq.size(2), -0.5) *
                           scale(options.scale_q, aq.size(2), -1) * options.scale_k.value_or(1);
  const double of_values = std::abs(options.scale_v.value_or(1));
  const auto product = [](const Tensor& a, const Tensor& c) {  // (b, m, h, features)
    return matmul(a.transpose(2, 3), c);
  };
  const auto scores = [&](const Tensor& q, const Tensor& k) {  // (b, m, h)
    return sum(q.unsqueeze(1) * k, 3);
  };
  const Tensor q = matmul(abs(aq), abs(bq)), k = product(abs(ak), abs(bk));
  const Tensor terms = scores(q, k) * std::abs(of_scores);
  Tensor s = scores(matmul(aq, bq), product(ak, bk)) * of_scores;
  Tensor p = zeros(s.shape(), f64);
  if (m > 0) p = act_composed(s, Act::softmax, 1);
  if (options.lengths.defined()) {
    const Tensor beyond = ge(arange(m, i64).reshape({1, m, 1}), options.lengths.reshape({b, 1, 1}));
    p = act_composed(masked_fill(s, beyond, -1e30), Act::softmax, 1);
    p = masked_fill(p, beyond, 0);
  }
  p = p * (1 + terms + sum(p * terms, 1, true));  // what scores are off by, weights are a part of
  const Tensor up = abs(d_o).reshape({b, 1, d_o.size(2), d_o.size(3)});
  const Tensor v = product(abs(av), abs(bv)) * of_values;
  const Tensor d_p = sum(up * v, 3), d_v = p.unsqueeze(3) * up * of_values;
  const Tensor d_s = p * (d_p + sum(p * d_p, 1, true)) * std::abs(of_scores);
  const Tensor d_k = d_s.unsqueeze(3) * q.unsqueeze(1), d_q = sum(d_s.unsqueeze(3) * k, 1);
  const auto as_given = [](const Tensor& x, const Tensor& given) {
    return x.reshape(given.shape());
  };
  return {as_given(sum(p.unsqueeze(3) * v, 1), d_o),
          as_given(matmul(d_q, abs(bq).transpose(1, 2)), in[0]),
          as_given(matmul(abs(bk), d_k.transpose(2, 3)), in[1]),
          as_given(matmul(abs(bv), d_v.transpose(2, 3)), in[2]),
          as_given(matmul(abs(aq).transpose(1, 2), d_q), in[3]),
          as_given(matmul(abs(ak), d_k), in[4]),
          as_given(matmul(abs(av), d_v), in[5])};
}

}  // namespace quipu::testing
