#pragma once
// The layer that transformers stack.
#include <utility>

#include "quipu/autograd/tape.h"
#include "quipu/nn/mlp.h"
#include "quipu/nn/norm.h"
#include "quipu/ops/pointwise/arithmetic.h"

namespace quipu::nn {

/// h = x + attention(norm1(x)), then h + mlp(norm2(h)); x (b, n, features).
///
///   using Layer = nn::TransformerLayer<nn::GatedLinearAttention>;
///   layers.emplace_back(64, nn::GatedLinearAttentionOptions{.heads = 4, .grid = {4, 4}});
template <class Attention>
struct TransformerLayer : Module {
  TransformerLayer() = default;
  template <class Options>
  TransformerLayer(std::int64_t features, const Options& attention_options,
                   const MLPOptions& mlp_options = {}, const Place& place = {})
      : norm1(features, place),
        norm2(features, place),
        attention(features, attention_options, place),
        mlp(features, mlp_options, place) {}
  void members(Members& m) override {
    m("norm1", norm1)("attention", attention)("norm2", norm2)("mlp", mlp);
  }

  /// x (b, n, features) -> the same shape.
  Tensor operator()(const Tensor& x) const {
    const MemoryScope named = scope();
    const Tensor h = x + half(x, [this](const auto& in) { return attention(norm1(in[0])); });
    return h + half(h, [this](const auto& in) { return mlp(norm2(in[0])); });
  }
  /// The tokens behind those in the cache, for an attention that can decode.
  template <class Cache>
  Tensor decode(const Tensor& x, Cache& cache) const {
    const MemoryScope named = scope();
    const Tensor h = x + attention.decode(norm1(x), cache);
    return h + mlp(norm2(h));
  }

  RMSNorm norm1,            // before attention
      norm2;                // before the feed-forward part
  Attention attention;      // (b, n, features) -> the same
  MLP mlp;                  // the feed-forward part
  bool recomputes = false;  // of both halves only the input is kept; backward runs them again

 private:
  template <class F>
  Tensor half(const Tensor& x, const F& f) const {
    return recomputes ? recompute(f, {x}) : f(std::vector{x});
  }
};

}  // namespace quipu::nn
