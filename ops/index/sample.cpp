#include "quipu/ops/index/sample.h"

#include <cmath>

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/sample_kernels.h"

namespace quipu {
using namespace detail;

Tensor sample(const Tensor& logits, const SampleOptions& options) {
  const OpScope op("sample");
  check_floating("logits", logits.dtype());
  check(logits.dim() >= 1, "logits has shape ", logits.shape(),
        ", but at least one dimension is wanted");
  check(std::isfinite(options.temperature) && options.temperature >= 0, "temperature is ",
        options.temperature, ", but a finite number from 0 on is wanted");
  check(options.top_k >= 0, "top_k is ", options.top_k, ", but a number from 0 (all) on is wanted");
  check(options.top_p >= 0 && options.top_p <= 1, "top_p is ", options.top_p,
        ", but a share lies between 0 and 1");
  Shape rows = logits.shape();
  rows.erase(rows.size() - 1);
  check(logits.size(-1) > 0 || numel(rows) == 0, "logits has shape ", logits.shape(),
        ", so there is no class to draw");
  Generator& generator = options.generator ? *options.generator : default_generator();
  const PhiloxState state =
      options.temperature > 0 ? generator.reserve(philox_counters(numel(rows))) : PhiloxState{};
  const Tensor o = empty(rows, i64, logits.device());
  sample_kernel(logits, o, {options.temperature, options.top_k, options.top_p}, state);
  return no_gradient(o);
}

}  // namespace quipu
