// The linear layer as a transformer has it, from 768 to 3072 features; n counts rows. Forward reads
// everything once; backward reads the inputs and the upstream gradient, and reads and writes the
// gradients.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Linear = Tensor (*)(const Tensor&, const Tensor&, const Tensor&);

OperatorRun run_of(std::int64_t n, DType dtype, Linear f) {
  const std::int64_t in = 768, out = 3072;
  const auto inputs = static_cast<double>(n * in + out * in + out);
  const auto output = static_cast<double>(n * out);
  const double product = 2.0 * static_cast<double>(n * in * out);
  return {{normal({n, in}, dtype), normal({out, in}, dtype), normal({out}, dtype)},
          [f](const std::vector<Tensor>& x) { return f(x[0], x[1], x[2]); },
          {bytes_of(inputs + output, dtype), product},
          {bytes_of(3 * inputs + output, dtype), 2 * product}};
}

void add(const std::string& op, Linear f) {
  add_operator(op, "", [=](DType dtype, std::int64_t n) { return run_of(n, dtype, f); });
}

const bool registered = [] {
  add("linear", linear);
  add("linear_composed", linear_composed);
  return true;
}();

}  // namespace
