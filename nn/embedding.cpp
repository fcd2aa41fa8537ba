#include "quipu/nn/embedding.h"

#include "quipu/ops/gather.h"

namespace quipu::nn {

Embedding::Embedding(std::int64_t count, std::int64_t features, const Place& place)
    : weight(make_parameter({count, features}, place)) {
  init::normal(weight, 0, 1, place.generator);
}

Tensor Embedding::operator()(const Tensor& indices) const {
  const MemoryScope named = scope();
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  return index_select(weight, 0, indices.flatten()).reshape(shape);
}

}  // namespace quipu::nn
