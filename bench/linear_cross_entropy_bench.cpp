// Cross entropy of a linear layer's output over 8192 classes, bound by its products. The
// materialised form is the layer and cross_entropy one after the other: it keeps the logits, where
// linear_cross_entropy computes them a second time.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using LinearLoss = Tensor (*)(const Tensor& x, const Tensor& weight, const Tensor& targets);

constexpr std::int64_t classes = 8192, features = 512;

/// Products with the weight: one forward, two or three in backward.
void add_linear_loss(const std::string& op, double backward_products, LinearLoss f) {
  add_operator(op, "", [=](DType dtype, std::int64_t n) {
    const Tensor targets = randint(0, classes, {batch, n}, i64, bench_device());
    const auto rows = static_cast<double>(batch * n);
    const double product = 2.0 * rows * classes * features;
    const double operands = bytes_of((rows + classes) * features, dtype);
    return OperatorRun{{normal({batch, n, features}, dtype), normal({classes, features}, dtype)},
                       [=](const std::vector<Tensor>& in) { return f(in[0], in[1], targets); },
                       {operands, product},
                       {3 * operands, backward_products * product}};
  });
}

Tensor fused(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  return linear_cross_entropy(x, weight, targets);
}
Tensor materialised(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  return cross_entropy(matmul(x, weight.t()), targets);
}
Tensor composed(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  return linear_cross_entropy_composed(x, weight, targets);
}

const bool registered = [] {
  add_linear_loss("linear_cross_entropy", 3, fused);
  add_linear_loss("linear_cross_entropy_materialised", 2, materialised);
  add_linear_loss("linear_cross_entropy_composed", 2, composed);
  return true;
}();

}  // namespace
