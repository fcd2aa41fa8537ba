#pragma once
// A table of vectors.
#include "quipu/nn/init.h"
#include "quipu/nn/module.h"

namespace quipu::nn {

/// Indices (...), i64 or i32 in [0, count) -> rows of the weight (..., features). Weight
/// (count, features) begins standard normal.
struct Embedding : Module {
  Embedding() = default;
  Embedding(std::int64_t count, std::int64_t features, const Place& place = {});
  void members(Members& m) override { m("weight", weight); }
  /// An index out of range is an error.
  Tensor operator()(const Tensor& indices) const;

  Tensor weight;  // (count, features)
};

}  // namespace quipu::nn
