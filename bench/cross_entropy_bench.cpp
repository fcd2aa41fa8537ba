// Cross entropy over 8192 classes: the logits are read once, and once more in backward, which reads
// and writes their gradient.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Loss = Tensor (*)(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions&);

constexpr std::int64_t classes = 8192;

void add_loss(const std::string& op, const std::string& variant, Loss f,
              const CrossEntropyOptions& options) {
  add_operator(op, variant, [=](DType dtype, std::int64_t n) {
    const Tensor targets = randint(0, classes, {batch, n}, i64, bench_device());
    const auto elements = static_cast<double>(batch * n * classes);
    return OperatorRun{{normal({batch, n, classes}, dtype)},
                       [=](const std::vector<Tensor>& in) { return f(in[0], targets, options); },
                       {bytes_of(elements, dtype), 17 * elements},
                       {bytes_of(3 * elements, dtype), 17 * elements}};
  });
}

const bool registered = [] {
  add_loss("cross_entropy", "", cross_entropy, {});
  add_loss("cross_entropy", "smoothing", cross_entropy, {.label_smoothing = 0.1});
  add_loss("cross_entropy_composed", "", cross_entropy_composed, {});
  return true;
}();

}  // namespace
