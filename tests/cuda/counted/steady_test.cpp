// Training in its steady state asks a CUDA device for launches alone: the host waits for nothing,
// and all memory comes from the cache. Only the emulated device can count that.
#include "support/support.h"

#include <functional>

#include "quipu/cuda/emulator/emulator.h"
#include "quipu/quipu.h"

namespace {

using namespace quipu;

const Device cuda("cuda");

/// What the host asked for in steps 2 to 5.
emulator::HostCalls calls_in_steady_state(const std::function<void()>& step) {
  step();
  synchronize(cuda);
  emulator::clear_counters();
  for (int i = 2; i <= 5; ++i) step();
  const emulator::HostCalls calls = emulator::host_calls();
  synchronize(cuda);
  return calls;
}

void check_steady(const std::function<void()>& step) {
  const emulator::HostCalls calls = calls_in_steady_state(step);
  CHECK(calls.waits == 0);
  CHECK(calls.allocations == 0);
  CHECK(calls.frees == 0);
}

/// A token model with one layer: embedding, norms, attention, perceptron, cross entropy.
template <class Attention, class Options>
struct Model {
  Model(const Options& options, DType dtype)
      : place{cuda, dtype},
        table(50, 32, place),
        layer(32, options, {.hidden = 48, .kind = nn::MLPKind::swiglu, .dropout = 0.1}, place),
        optimizer(parameters(), {.lr = 1e-3}) {}
  NamedTensors parameters() {
    NamedTensors all = layer.parameters();
    all.emplace_back("table", table.weight);
    return all;
  }
  void step() {
    optimizer.zero_grad();
    Tape tape;
    const Tensor x = layer(table(tokens));
    tape.backward(linear_cross_entropy(x.reshape({-1, 32}), table.weight, targets));
    optimizer.step({.max_norm = 1.0});
  }

  nn::Place place;
  nn::Embedding table;
  nn::TransformerLayer<Attention> layer;
  nn::AdamW optimizer;
  Tensor tokens = randint(0, 50, {2, 16}, i64, cuda), targets = randint(0, 50, {32}, i64, cuda);
};

}  // namespace

TEST_CASE("steady: a step of a transformer waits for nothing and takes memory from the cache") {
  if (!is_available(cuda)) return;
  for (const DType dtype : {f32, bf16}) {
    CAPTURE(name_of(dtype));
    Model<nn::GatedLinearAttention, nn::GatedLinearAttentionOptions> gated(
        {.heads = 2, .grid = {4, 4}}, dtype);
    check_steady([&] { gated.step(); });
    Model<nn::TensorProductAttention, nn::TensorProductAttentionOptions> factored(
        {.heads = 2, .rank = 2}, dtype);
    check_steady([&] { factored.step(); });
  }
}

TEST_CASE("steady: fused operators and reductions wait for nothing") {
  if (!is_available(cuda)) return;
  const Tensor x = randn({2, 40, 3, 16}, bf16, cuda).set_requires_grad();
  const Tensor theta = randn({3, 8}, f32, cuda), wide = randn({3, 16}, f32, cuda);
  check_steady([&] {
    Tape tape;
    const Tensor rotated = lrpe_rotate(x, theta, {.act = Act::softmax, .dim = 1});
    const Tensor doubled = lrpe_cosine(x, wide, {.act = Act::silu});
    const Tensor dropped = dropout(act(x, Act::softmax, -2), 0.5);
    tape.backward(sum(rotated * rotated) + sum(doubled) + mean(dropped) + max(logsumexp(x, 1)));
    x.zero_grad();
  });
}

TEST_CASE("steady: reading a value, fresh memory and its release are counted (control)") {
  if (!is_available(cuda)) return;
  const Tensor x = ones({1000}, f32, cuda);
  CHECK(calls_in_steady_state([&] { sum(x).item(); }).waits >= 4);
  std::int64_t size = 1 << 18;
  const emulator::HostCalls calls = calls_in_steady_state([&] {
    const Tensor larger = zeros({size *= 2}, f32, cuda);
    release_cached(cuda);
  });
  CHECK(calls.allocations >= 4);
  CHECK(calls.frees >= 3);
}
