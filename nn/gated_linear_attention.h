#pragma once
// Linear attention with an output gate, on a grid of any number of dimensions.
#include "quipu/nn/linear.h"
#include "quipu/nn/norm.h"
#include "quipu/ops/flao/flao.h"

namespace quipu::nn {

/// Heads, and how tokens lie; the grid must be given.
struct GatedLinearAttentionOptions {
  std::int64_t heads = 1;             // features are a multiple of it
  Shape grid = {};                    // of the tokens; its last axis runs fastest
  std::int64_t lead = 0;              // tokens before the grid, such as a class token
  FlaoKeep keep = FlaoKeep::nothing;  // what flao saves for backward
};

/// x (b, n, features), n = lead + prod(grid), -> (b, n, features). With q, k, v, g = qkvg(x), cut
/// into heads,
///   o = sigmoid(g) * (q~ (k~^T v)) / n, where ~ is silu and then lrpe_cosine_md on the grid;
/// the rows of each head are normalised (RMSNorm) and joined by `out`. Activations, encodings and
/// both products are one knot; q, k, v, g are views of one product.
struct GatedLinearAttention : Module {
  GatedLinearAttention() = default;
  GatedLinearAttention(std::int64_t features, const GatedLinearAttentionOptions& options,
                       const Place& place = {});
  void members(Members& m) override {
    m("qkvg", qkvg)("norm", norm)("out", out).buffer("theta", theta);
  }
  /// All tokens attend to all: it is not causal.
  Tensor operator()(const Tensor& x) const;

  GatedLinearAttentionOptions options;  // as given
  Linear qkvg,                          // features -> 4 features, without bias
      out;                              // features -> features, without bias
  RMSNorm norm;                         // of one head
  Tensor theta;                         // (1, angles of an axis), between 0 and pi
};

}  // namespace quipu::nn
