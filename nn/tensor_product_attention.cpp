#include "quipu/nn/tensor_product_attention.h"

#include <cmath>

#include "quipu/nn/width.h"
#include "quipu/ops/attention.h"
#include "quipu/ops/join.h"
#include "quipu/ops/lrpe/lrpe.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/tpa_decode/tpa_decode.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

Tensor rotary_angles(std::int64_t count, double base, const Place& place) {
  std::vector<double> angles;
  for (std::int64_t i = 0; i < count; ++i) {
    angles.push_back(std::pow(base, -static_cast<double>(i) / static_cast<double>(count)));
  }
  return from(angles, {1, count}, compute_type(place.dtype), place.device);
}

}  // namespace

TensorProductAttention::TensorProductAttention(std::int64_t features,
                                               const TensorProductAttentionOptions& wanted,
                                               const Place& place)
    : options(wanted) {
  const std::int64_t h = options.heads, r = options.rank;
  check(h > 0 && r > 0, "TensorProductAttention: ", h, " heads of rank ", r,
        " are given, but both must be positive");
  if (options.head_dim == 0) options.head_dim = features / h;
  const std::int64_t d = options.head_dim;
  check_width("TensorProductAttention: features", features);
  check_width("TensorProductAttention: heads", h);
  check_width("TensorProductAttention: rank", r);
  check(d > 0 && d % 2 == 0, "TensorProductAttention: head_dim is ", d,
        ", but rotating pairs features and needs a positive even number");
  check_width("TensorProductAttention: head_dim", d);
  factors = Linear(features, h * r + r * d + 2 * (h + d), {.bias = false}, place);
  out = Linear(h * d, features, {.bias = false}, place);
  theta = make_buffer(rotary_angles(d / 2, options.base, place));
}

TensorProductAttention::Factors TensorProductAttention::factors_at(const Tensor& x,
                                                                   std::int64_t position) const {
  check(x.dim() == 3, "TensorProductAttention: x has shape ", x.shape(),
        ", but (b, n, features) is wanted");
  const std::int64_t b = x.size(0), n = x.size(1);
  const std::int64_t h = options.heads, d = options.head_dim, r = options.rank;
  const std::vector<Tensor> part = split(factors(x), {h * r, r * d, h, d, h, d}, -1);
  const LrpeOptions at{.offset = position};
  return {.aq = part[0].view({b, n, h, r}),
          .ak = part[2],
          .av = part[4],
          .bq = lrpe_rotate(part[1].view({b, n, r, d}), theta, at),
          .bk = lrpe_rotate(part[3], theta, at),
          .bv = part[5]};
}

Tensor TensorProductAttention::attend(const Factors& f) const {
  const std::int64_t b = f.aq.size(0), n = f.aq.size(1), d = options.head_dim;
  const Tensor q = matmul(f.aq, f.bq);
  const Tensor k = f.ak.unsqueeze(-1) * f.bk.unsqueeze(2);
  const Tensor v = f.av.unsqueeze(-1) * f.bv.unsqueeze(2);
  const double scale = 1 / (std::sqrt(static_cast<double>(d)) * static_cast<double>(options.rank));
  const Tensor o = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                             {.causal = true, .scale = scale});
  return out(o.transpose(1, 2).reshape({b, n, options.heads * d}));
}

Tensor TensorProductAttention::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  return attend(factors_at(x, 0));
}

Tensor TensorProductAttention::decode(const Tensor& x, TpaCache& cache) const {
  const MemoryScope named = scope();
  const std::int64_t past = cache.length();
  check(past == 0 || x.size(1) == 1, "TensorProductAttention: x has shape ", x.shape(),
        ", but the cache holds ", past, " tokens, and behind them they come one by one");
  const Factors f = factors_at(x, past);
  cache.append(f.ak, f.av, f.bk, f.bv);
  if (past == 0) return attend(f);
  const TpaCache::Factors all = cache.view();
  const Tensor o = tpa_decode(f.aq, all.ak, all.av, f.bq, all.bk, all.bv);
  return out(o.reshape({x.size(0), 1, options.heads * options.head_dim}));
}

TpaCache TensorProductAttention::make_cache(std::int64_t b, std::int64_t capacity) const {
  TpaCache cache;
  cache.reserve(b, capacity, options.heads, options.head_dim, options.head_dim,
                factors.weight.dtype(), factors.weight.device());
  return cache;
}

}  // namespace quipu::nn
