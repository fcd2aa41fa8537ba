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
  /// Each row by itself; the shape stays.
  Tensor operator()(const Tensor& x) const;

  Tensor weight;      // (features)
  double eps = 1e-6;  // so that a row of zeros stays one
};

/// x (..., features) -> (x - mean) / sqrt(variance + eps) * weight + bias. Weight begins as ones,
/// bias as zeros.
struct LayerNorm : Module {
  LayerNorm() = default;
  explicit LayerNorm(std::int64_t features, const Place& place = {}, double epsilon = 1e-5);
  void members(Members& m) override { m("weight", weight)("bias", bias); }
  /// Each row by itself; the shape stays.
  Tensor operator()(const Tensor& x) const;

  Tensor weight,      // (features)
      bias;           // (features)
  double eps = 1e-5;  // so that rows of equal entries can be divided
};

}  // namespace quipu::nn
