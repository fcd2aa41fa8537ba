// Attention over factored keys and values at the published sizes; n counts entries. Forward reads
// the factors; backward reads them again, and reads and writes their gradients.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

constexpr std::int64_t tpa_heads = 32, tpa_r = 16;

using Decode = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const TpaOptions&);

OperatorRun run_of(std::int64_t b, std::int64_t n, DType dtype, Decode f) {
  const std::int64_t h = tpa_heads, r = tpa_r, d = head_dim, e = head_dim;
  const auto elements = static_cast<double>(b * (h * r + r * d + n * (2 * h + d + e)));
  const auto output = static_cast<double>(b * h * e);
  // Products along d, r and e for every entry; backward finds scores again and needs six more.
  const auto pairs = 2.0 * static_cast<double>(b * n);
  const auto inner = static_cast<double>(d * r), middle = static_cast<double>(r * h),
             outer = static_cast<double>(h * e);
  return {
      {normal({b, 1, h, r}, dtype), normal({b, n, h}, dtype), normal({b, n, h}, dtype),
       normal({b, 1, r, d}, dtype), normal({b, n, d}, dtype), normal({b, n, e}, dtype)},
      [f](const std::vector<Tensor>& in) {
        return f(in[0], in[1], in[2], in[3], in[4], in[5], {});
      },
      {bytes_of(elements + output, dtype), pairs * (inner + middle + outer)},
      {bytes_of(3 * elements + 2 * output, dtype), pairs * (3 * inner + 3 * middle + 2 * outer)}};
}

void add(const std::string& op, Decode f) {
  for (const std::int64_t b : {8, 32}) {
    add_operator(op, "b" + std::to_string(b),
                 [=](DType dtype, std::int64_t n) { return run_of(b, n, dtype, f); });
  }
}

const bool registered = [] {
  add("tpa_decode", tpa_decode);
  add("tpa_decode_composed", tpa_decode_composed);
  return true;
}();

}  // namespace
