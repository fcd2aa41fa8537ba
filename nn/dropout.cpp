#include "quipu/nn/dropout.h"

#include "quipu/ops/dropout.h"

namespace quipu::nn {
using namespace quipu::detail;

Dropout::Dropout(double probability) : p(probability) {
  check(p >= 0 && p <= 1, "Dropout: p is ", p, ", but a probability lies between 0 and 1");
}

Tensor Dropout::operator()(const Tensor& x) const {
  if (!training()) return x;
  const MemoryScope named = scope();
  return dropout(x, p);
}

}  // namespace quipu::nn
