#include "quipu/nn/linear.h"

#include <cmath>

#include "quipu/ops/matmul/linear.h"

namespace quipu::nn {

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options,
               const Place& place) {
  weight = make_parameter({out, in}, place);
  const double bound = in > 0 ? 1 / std::sqrt(static_cast<double>(in)) : 0;
  init::uniform(weight, -bound, bound, place.generator);
  if (!options.bias) return;
  bias = make_parameter({out}, place);
  init::uniform(bias, -bound, bound, place.generator);
}

Tensor Linear::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  return quipu::linear(x, weight, bias);
}

}  // namespace quipu::nn
