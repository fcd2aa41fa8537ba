#pragma once
// The linear layer.
#include "quipu/nn/init.h"
#include "quipu/nn/module.h"

namespace quipu::nn {

/// Of the linear layer.
struct LinearOptions {
  bool bias = true;  // false: the product alone
};

/// x (..., in) -> x weight^T + bias (..., out). Weight (out, in) and bias (out) begin uniform
/// within 1 / sqrt(in).
struct Linear : Module {
  Linear() = default;
  Linear(std::int64_t in, std::int64_t out, const LinearOptions& options = {},
         const Place& place = {});
  void members(Members& m) override { m("weight", weight)("bias", bias); }
  /// x has the weight's type, and `in` features.
  Tensor operator()(const Tensor& x) const;

  Tensor weight,  // (out, in)
      bias;       // (out), or undefined
};

}  // namespace quipu::nn
