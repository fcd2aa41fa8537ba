#pragma once
// The feed-forward part of a transformer layer.
#include "quipu/nn/dropout.h"
#include "quipu/nn/linear.h"

namespace quipu::nn {

/// The activation of the hidden layer; swiglu has a gate besides (Shazeer 2020, arXiv:2002.05202).
enum class MLPKind : std::uint8_t { silu, relu, gelu, swiglu };

/// Of the hidden layer.
struct MLPOptions {
  std::int64_t hidden = 0;       // 4 times the features, for swiglu 8/3 of them, if left 0
  MLPKind kind = MLPKind::silu;  // its activation
  bool bias = false;             // in both products
  double dropout = 0;            // probability, behind the hidden layer
};

/// x (..., features) -> down(act(up(x))), or down(silu(gate(x)) * up(x)) for swiglu, where `up`
/// makes both in one product, the gate first.
struct MLP : Module {
  MLP() = default;
  explicit MLP(std::int64_t features, const MLPOptions& options = {}, const Place& place = {});
  void members(Members& m) override { m("up", up)("drop", drop)("down", down); }
  /// The shape stays; each row by itself.
  Tensor operator()(const Tensor& x) const;

  MLPKind kind = MLPKind::silu;  // as given
  Linear up,                     // features -> hidden, or 2 hidden for swiglu
      down;                      // hidden -> features
  Dropout drop;                  // between them
};

}  // namespace quipu::nn
