// Gated linear attention. Forward reads q, k, v, g and writes the output, backward reads those and
// the upstream gradient and reads and writes four gradients; kv stays in the caches. Two products
// forward, four backward.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Operation = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const FlaoOptions&);

void add_flao(const std::string& op, const std::string& variant, const FlaoOptions& options,
              Operation f) {
  add_operator(op, variant, [=](DType dtype, std::int64_t n) {
    const Shape shape{batch, heads, n, head_dim};
    const auto elements = static_cast<double>(numel(shape));
    const bool doubled = options.lrpe == FlaoLrpe::cosine;
    const double product = 2 * elements * head_dim * (doubled ? 2 : 1);
    FlaoOptions with_theta = options;
    if (options.lrpe != FlaoLrpe::none) {
      with_theta.theta = normal({heads, doubled ? head_dim : head_dim / 2}, f32);
    }
    std::vector<Tensor> in;
    for (int i = 0; i < 4; ++i) in.push_back(normal(shape, dtype));
    return OperatorRun{
        std::move(in),
        [=](const std::vector<Tensor>& x) { return f(x[0], x[1], x[2], x[3], with_theta); },
        {bytes_of(5 * elements, dtype), 2 * product},
        {bytes_of(13 * elements, dtype), 4 * product}};
  });
}

const bool registered = [] {
  const FlaoOptions all{.keep = FlaoKeep::kv_and_qkv};
  add_flao("flao", "", {}, flao);
  add_flao("flao", "keep_kv", {.keep = FlaoKeep::kv}, flao);
  add_flao("flao", "keep_kv_and_qkv", all, flao);
  add_flao("flao_composed", "", {}, flao_composed);
  const FlaoOptions silu{.q_act = Act::silu, .k_act = Act::silu, .g_act = Act::silu};
  FlaoOptions rotate = silu, cosine = silu;
  rotate.lrpe = FlaoLrpe::rotate;
  cosine.lrpe = FlaoLrpe::cosine;
  add_flao("flao", "silu", silu, flao);
  add_flao("flao", "silu_rotate", rotate, flao);
  add_flao("flao", "silu_cosine", cosine, flao);
  add_flao("flao_composed", "silu_cosine", cosine, flao_composed);
  return true;
}();

}  // namespace
