// Softmax attention: the entry, which chooses kernels. Forward is one kernel, by tensor cores
// (mma_forward.cu) where types and sizes allow it, else the general one (tiles.cuh). Backward first
// computes the row sums of o * d_o (means.cu), then recomputes the weights from the log-sum-exps,
// by tensor cores in one pass (mma_backward.cu) or in general ones (tiles.cuh): gradients of keys
// and values by blocks of keys, those of queries by blocks of queries, so that each element has one
// owner. FlashAttention-2: Dao 2023, arXiv:2307.08691.
#include "mma.cuh"
#include "quipu/core/error.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
Attention<T> attention_of(const AttentionInputs& in, std::int64_t e) {
  constexpr std::int64_t most = (std::int64_t{1} << 30);
  const std::int64_t key_heads = in.k.size(1), n = in.q.size(2), m = in.k.size(2);
  const std::int64_t group = key_heads > 0 ? in.q.size(1) / key_heads : 0;
  check(group * n < most && m < most, "a head has ", group * n, " queries and ", m,
        " keys, but a device takes at most ", most, " of either");
  Attention<T> a;
  a.q = AttentionView(in.q);
  a.k = AttentionView(in.k);
  if (in.v.defined) a.v = AttentionView(in.v);
  a.scale = static_cast<T>(in.scale);
  a.causal = in.causal;
  a.key_heads = static_cast<int>(key_heads);
  a.group = static_cast<int>(group);
  a.n = static_cast<int>(n);
  a.m = static_cast<int>(m);
  a.d = static_cast<int>(in.q.size(3));
  a.e = static_cast<int>(e);
  a.rows = a.group * a.n;
  a.tokens = Divider(static_cast<std::uint32_t>(std::max(a.n, 1)));
  return a;
}

template <class T>
void set_sums(Attention<T>& a, const LogSums& sums) {
  a.lse = sums.lse.defined ? sums.lse.as<T>() : nullptr;
  a.rest = sums.rest.defined ? sums.rest.as<T>() : nullptr;
}

std::int64_t key_heads_of(const AttentionInputs& in) {
  return in.q.size(0) * in.k.size(1);
}

template <class T>
void forward_as(const AttentionInputs& in, const View& o, const LogSums& sums,
                const View& partial) {
  Attention<T> a = attention_of<T>(in, o.size(3));
  a.out = AttentionView(o);
  set_sums(a, sums);
  if constexpr (std::is_same_v<T, float>) {
    if (attention_forward_mma(in.q, a, o, sums, partial, attention_blocks(in))) return;
  }
  attention_general(in.q, a, key_heads_of(in), AttentionPass::forward);
}

void forward(const AttentionInputs& in, View o, const LogSums& sums, View partial) {
  (in.q.dtype == f64 ? forward_as<double> : forward_as<float>)(in, o, sums, partial);
}

template <class T>
void backward_as(const AttentionInputs& in, const View& o, const LogSums& sums, const View& d_o,
                 const AttentionInputGrads& d, const View& mean) {
  const std::int64_t heads = key_heads_of(in);
  Attention<T> a = attention_of<T>(in, d_o.size(3));
  a.d_o = AttentionView(d_o);
  set_sums(a, sums);
  if (mean.defined) {
    T* const words = mean.as<T>();
    const AttentionSpace space = attention_space(in, d.q.wanted());
    attention_means<T>(
        in.q, a, o, heads * a.rows,
        {words, in.q.dtype == f16 && space.sizes < space.sums ? words + space.sizes : nullptr,
         reinterpret_cast<unsigned*>(words + space.turns), space.end - space.turns});
    a.mean = words;
    if constexpr (std::is_same_v<T, float>) {
      if (attention_backward_mma(in.q, a, d, heads, space, words)) return;
    }
  }
  const auto make = [&](const Grad& g, AttentionPass pass) {
    if (!g.wanted() || g.view.numel() == 0) return;
    a.out = AttentionView(g.view);
    a.add = g.add;
    attention_general(in.q, a, heads, pass);
  };
  make(d.v, AttentionPass::d_v);
  make(d.k, AttentionPass::d_k);
  make(d.q, AttentionPass::d_q);
}

void backward(const AttentionInputs& in, View o, const LogSums& sums, View d_o,
              const AttentionInputGrads& d, View mean, View) {
  (in.q.dtype == f64 ? backward_as<double> : backward_as<float>)(in, o, sums, d_o, d, mean);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_attention() {
  attention_forward_kernel.provide(Variant::cuda, on_cuda::forward);
  attention_backward_kernel.provide(Variant::cuda, on_cuda::backward);
}

}  // namespace quipu::detail
