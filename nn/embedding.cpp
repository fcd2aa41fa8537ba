#include "quipu/nn/embedding.h"

#include "quipu/ops/index/embedding.h"

namespace quipu::nn {

Embedding::Embedding(std::int64_t count, std::int64_t features, const Place& place)
    : weight(make_parameter({count, features}, place)) {
  init::normal(weight, 0, 1, place.generator);
}

Tensor Embedding::operator()(const Tensor& indices) const {
  const MemoryScope named = scope();
  return embedding(weight, indices);
}

}  // namespace quipu::nn
