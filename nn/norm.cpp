#include "quipu/nn/norm.h"

#include "quipu/ops/norm.h"

namespace quipu::nn {

RMSNorm::RMSNorm(std::int64_t features, const Place& place, double epsilon)
    : weight(init::ones(make_parameter({features}, place))), eps(epsilon) {}

Tensor RMSNorm::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  return rms_norm(x, weight, eps);
}

LayerNorm::LayerNorm(std::int64_t features, const Place& place, double epsilon)
    : weight(init::ones(make_parameter({features}, place))),
      bias(init::zeros(make_parameter({features}, place))),
      eps(epsilon) {}

Tensor LayerNorm::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  return layer_norm(x, weight, bias, eps);
}

}  // namespace quipu::nn
