// What the ledger and recordings cost in a training step of a small language model. `ledger_%` is
// an upper limit: all events of a step at the time of a whole allocation or release, with
// everything that the allocator does. `recording_%` is what events and operators take longer while
// a recording is on; `steps_%` is the same from whole steps in turn, and as noisy as those.
#include <benchmark/benchmark.h>
#include <quipu/nn/embedding.h>
#include <quipu/nn/optim/adamw.h>
#include <quipu/nn/tensor_product_attention.h>
#include <quipu/nn/transformer_layer.h>
#include <quipu/quipu.h>

#include <algorithm>
#include <chrono>
#include <optional>

namespace {

using namespace quipu;
using namespace quipu::detail;

using Layer = nn::TransformerLayer<nn::TensorProductAttention>;

struct Lm : nn::Module {
  static constexpr std::int64_t features = 128;
  nn::Embedding embed{256, features};
  std::vector<Layer> layers;
  nn::RMSNorm norm{features};
  nn::Linear head{features, 256, {.bias = false}};

  Lm() {
    const nn::TensorProductAttentionOptions attention{.heads = 4, .head_dim = 32, .rank = 4};
    for (int i = 0; i < 4; ++i) layers.emplace_back(features, attention);
  }
  void members(nn::Members& m) override {
    m("embed", embed)("layers", layers)("norm", norm)("head", head);
  }
  Tensor loss(const Tensor& x, const Tensor& y) const {
    Tensor h = embed(x);
    for (const Layer& layer : layers) h = layer(h);
    return linear_cross_entropy(norm(h), head.weight, y);
  }
};

double seconds(const auto& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

/// Seconds of an operator that allocates a block and lets it go: one operator, two events.
double operator_seconds(bool recorded) {
  constexpr int calls = 100000;
  std::vector<double> runs;
  for (int run = 0; run < 5; ++run) {
    std::optional<MemoryRecording> recording;
    if (recorded) recording.emplace(cpu);
    runs.push_back(seconds([] {
      for (int i = 0; i < calls; ++i) {
        const OpScope op("bench");
        const Ref<Storage> storage(new Storage(Shape{128, 128}, f32, cpu, Category::output));
        benchmark::DoNotOptimize(storage->data());
      }
    }));
  }
  return *std::min_element(runs.begin(), runs.end()) / calls;
}

void training_step(benchmark::State& state) {
  const Lm model;
  nn::AdamW optimizer(model.parameters());
  const Tensor x = randint(0, 256, {16, 128}), y = randint(0, 256, {16, 128});
  const auto step = [&] {
    optimizer.zero_grad();
    {
      Tape tape;
      tape.backward(model.loss(x, y));
    }
    optimizer.step({.max_norm = 1.0});
  };
  step();
  std::size_t events = 0, operators = 0;
  std::vector<double> plain, recorded;
  for (auto _ : state) {
    plain.push_back(seconds(step));
    const MemoryRecording recording(cpu);
    recorded.push_back(seconds(step));
    state.SetIterationTime(plain.back());
    events = recording.log().seen;
    operators = recording.spans().size();
  }
  const double one = operator_seconds(false), longer = operator_seconds(true) - one;
  const double most = static_cast<double>(std::max(events / 2, operators));
  state.counters["events"] = static_cast<double>(events);
  state.counters["event_ns"] = 0.5e9 * one;
  state.counters["ledger_%"] = 50 * one * static_cast<double>(events) / median(plain);
  state.counters["recording_%"] = 100 * longer * most / median(plain);
  state.counters["steps_%"] = 100 * (median(recorded) / median(plain) - 1);
}
BENCHMARK(training_step)
    ->Name("ledger/training_step")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
