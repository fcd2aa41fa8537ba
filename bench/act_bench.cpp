// Activations, gelu and swiglu: each element is read and written once; backward reads two tensors
// and reads and writes the gradient.
#include <quipu/quipu.h>

#include "operator_bench.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// `inputs` tensors of one shape in, one out; `flops` an element, twice that in backward.
void add_elementwise(const std::string& op, const std::string& variant, int inputs, double flops,
                     const Function& f) {
  add_operator(op, variant, [=](DType dtype, std::int64_t n) {
    const Shape shape{batch, heads, n, head_dim};
    const auto elements = static_cast<double>(numel(shape));
    OperatorRun run{{}, f, {}, {}};
    for (int i = 0; i < inputs; ++i) run.inputs.push_back(normal(shape, dtype));
    run.forward = {bytes_of((inputs + 1) * elements, dtype), flops * elements};
    run.backward = {bytes_of((1 + 3 * inputs) * elements, dtype), 2 * flops * elements};
    return run;
  });
}

void add_act(const std::string& variant, Act kind, std::optional<int> dim, double flops) {
  add_elementwise("act", variant, 1, flops,
                  [=](const std::vector<Tensor>& in) { return act(in[0], kind, dim); });
  add_elementwise("act_composed", variant, 1, flops,
                  [=](const std::vector<Tensor>& in) { return act_composed(in[0], kind, dim); });
}

const bool registered = [] {
  add_act("relu", Act::relu, {}, 1);
  add_act("sigmoid", Act::sigmoid, {}, 16);
  add_act("silu", Act::silu, {}, 17);
  add_act("softmax_dim-1", Act::softmax, -1, 17);
  add_act("softmax_dim-2", Act::softmax, -2, 17);
  add_elementwise("gelu", "", 1, 40, [](const std::vector<Tensor>& in) { return gelu(in[0]); });
  add_elementwise("swiglu", "", 2, 18,
                  [](const std::vector<Tensor>& in) { return swiglu(in[0], in[1]); });
  return true;
}();

}  // namespace
