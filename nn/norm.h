#pragma once
// Normalisation of rows with a learned scale.
#include "quipu/nn/init.h"
#include "quipu/nn/module.h"

namespace quipu::nn {

/// x (..., features) -> x / sqrt(mean of x^2 + eps) * weight. Weight begins as ones.
struct RMSNorm : Module {
  RMSNorm() = default;
  explicit RMSNorm(std::int64_t features, const Place& place = {}, double epsilon = 1e-6);
  void members(Members& m) override { m("weight", weight); }
  Tensor operator()(const Tensor& x) const;

  Tensor weight;
  double eps = 1e-6;
};

/// x (..., features) -> (x - mean) / sqrt(variance + eps) * weight + bias. Weight begins as ones,
/// bias as zeros.
struct LayerNorm : Module {
  LayerNorm() = default;
  explicit LayerNorm(std::int64_t features, const Place& place = {}, double epsilon = 1e-5);
  void members(Members& m) override { m("weight", weight)("bias", bias); }
  Tensor operator()(const Tensor& x) const;

  Tensor weight, bias;
  double eps = 1e-5;
};

}  // namespace quipu::nn
