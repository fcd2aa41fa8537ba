// Rows of a table of 8192: each is read and written once; backward reads the gradients of the rows
// and reads and writes the places that they are added to.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::bench;

const bool registered = [] {
  add_operator("embedding", "", [](DType dtype, std::int64_t n) {
    constexpr std::int64_t rows = 8192, features = heads * head_dim;
    const Tensor indices = randint(0, rows, {batch, n}, i64, bench_device());
    const auto elements = static_cast<double>(batch * n * features);
    return OperatorRun{{normal({rows, features}, dtype)},
                       [=](const std::vector<Tensor>& in) { return embedding(in[0], indices); },
                       {bytes_of(2 * elements, dtype), 0},
                       {bytes_of(3 * elements, dtype), 0}};
  });
  return true;
}();

}  // namespace
