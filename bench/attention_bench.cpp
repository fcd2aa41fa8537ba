// Softmax attention, causal and not, as a transformer has it (b 4, 12 heads of 64 features; queries
// and keys lie as (b, n, h, d)), and as a small one does (b 16, 4 heads of 32). n counts queries
// and keys. Forward reads q, k and v and computes two products; backward reads them, the output and
// its gradient, reads and writes gradients, and computes five products. A causal mask halves them.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Attention = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const AttentionOptions&);

struct Heads {
  const char* name;
  std::int64_t b, h, d;
};

OperatorRun run_of(const Heads& s, std::int64_t n, DType dtype, bool causal, Attention f) {
  const auto input = [&] { return normal({s.b, n, s.h, s.d}, dtype).transpose(1, 2); };
  const auto elements = static_cast<double>(s.b * s.h * n * s.d);
  const double product = 2 * elements * static_cast<double>(causal ? (n + 1) / 2 : n);
  return {{input(), input(), input()},
          [=](const std::vector<Tensor>& in) { return f(in[0], in[1], in[2], {.causal = causal}); },
          {bytes_of(4 * elements, dtype), 2 * product},
          {bytes_of(11 * elements, dtype), 5 * product}};
}

void add(const std::string& op, Attention f) {
  for (const Heads& s : {Heads{"", 4, 12, 64}, Heads{"_small", 16, 4, 32}}) {
    for (const bool causal : {false, true}) {
      const std::string variant = (causal ? "causal" : "full") + std::string(s.name);
      add_operator(op, variant,
                   [=](DType dtype, std::int64_t n) { return run_of(s, n, dtype, causal, f); });
    }
  }
}

const bool registered = [] {
  add("attention", attention);
  add("attention_composed", attention_composed);
  return true;
}();

}  // namespace
