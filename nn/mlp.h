#pragma once
// The feed-forward part of a transformer layer.
#include "quipu/nn/dropout.h"
#include "quipu/nn/linear.h"

namespace quipu::nn {

enum class MLPKind : std::uint8_t { silu, relu, gelu, swiglu };

struct MLPOptions {
  std::int64_t hidden = 0;  // 4 times the features, for swiglu 8/3 of them, if left 0
  MLPKind kind = MLPKind::silu;
  bool bias = false;
  double dropout = 0;  // behind the hidden layer
};

/// x (..., features) -> down(act(up(x))), or down(silu(gate(x)) * up(x)) for swiglu, where `up`
/// makes both in one product, the gate first.
struct MLP : Module {
  MLP() = default;
  explicit MLP(std::int64_t features, const MLPOptions& options = {}, const Place& place = {});
  void members(Members& m) override { m("up", up)("drop", drop)("down", down); }
  Tensor operator()(const Tensor& x) const;

  MLPKind kind = MLPKind::silu;
  Linear up, down;
  Dropout drop;
};

}  // namespace quipu::nn
