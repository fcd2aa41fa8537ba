// A recorded step gives the bits of the plain one, by one launch, and keeps what it needs.
#include "support/support.h"

#include <optional>
#include <thread>

#include "quipu/quipu.h"
#ifdef QUIPU_EMULATE
#include "quipu/cuda/emulator/emulator.h"
#endif

namespace {

using namespace quipu;

/// A token model with dropout, clipped and scheduled.
struct Trainer {
  explicit Trainer(const Device& device, DType dtype = f32)
      : place{device, dtype},
        table(20, 16, place),
        layer(16, nn::TensorProductAttentionOptions{.heads = 2, .rank = 2},
              {.hidden = 24, .kind = nn::MLPKind::swiglu, .dropout = 0.2}, place),
        optimizer(parameters(), {.lr = 1e-2}),
        tokens(zeros({2, 6}, i64, device)),
        targets(zeros({12}, i64, device)) {}
  NamedTensors parameters() {
    NamedTensors all = layer.parameters();
    all.emplace_back("table", table.weight);
    return all;
  }
  /// Data and learning rate of a step.
  void prepare(std::int64_t step) {
    Generator data(static_cast<std::uint64_t>(step));
    tokens.copy_from(randint(0, 20, {2, 6}, i64, cpu, data));
    targets.copy_from(randint(0, 20, {12}, i64, cpu, data));
    optimizer.set_lr(1e-2 / static_cast<double>(step + 1));
  }
  void step() {
    optimizer.zero_grad();
    Tape tape;
    loss = cross_entropy(matmul(layer(table(tokens)).reshape({12, 16}), table.weight.t()), targets);
    tape.backward(loss);
    optimizer.step({.max_norm = 1.0});
  }
  std::vector<double> state() {
    std::vector<double> all = {loss.item()};
    for (const auto& [name, p] : parameters()) {
      const std::vector<double> values = p.to_vector();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  nn::Place place;
  nn::Embedding table;
  nn::TransformerLayer<nn::TensorProductAttention> layer;
  nn::AdamW optimizer;
  Tensor tokens, targets, loss;
};

/// The state after each step.
std::vector<std::vector<double>> plain_run(const Device& device, DType dtype, int steps) {
  manual_seed(3);
  Trainer trainer(device, dtype);
  std::vector<std::vector<double>> states;
  for (int i = 0; i < steps; ++i) {
    trainer.prepare(i);
    trainer.step();
    states.push_back(trainer.state());
  }
  return states;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice,
                  "step graph: a hundred steps with dropout and a schedule, same bits") {
  for (const DType dtype : {f32, bf16}) {
    const int steps = dtype == f32 ? 100 : 5;
    const auto expected = plain_run(device, dtype, steps);
    manual_seed(3);
    Trainer trainer(device, dtype);
    trainer.prepare(0);
    StepGraph graph([&] { trainer.step(); });
    CHECK(graph.recorded() == device.is_cuda());
    for (int i = 1; i < steps; ++i) {
      trainer.prepare(i);
      graph.replay();
      CAPTURE(i);
      REQUIRE(trainer.state() == expected[static_cast<std::size_t>(i)]);
    }
    CHECK(default_generator().state().offset > 0);
  }
}

TEST_CASE_FIXTURE(EachDevice, "step graph: recompute, loss scale, Lion, SGD and Muon, same bits") {
  const auto run = [&](auto make_optimizer, bool graphed) {
    manual_seed(5);
    nn::Linear in(6, 8, {.bias = false}, {device}), out(8, 3, {.bias = false}, {device});
    NamedTensors parameters = in.parameters();
    for (auto& [name, p] : out.parameters()) parameters.emplace_back("out " + name, p);
    auto optimizer = make_optimizer(parameters);
    nn::LossScale scale(device);
    const Tensor x = randn({4, 6}, f32, device), y = randn({4, 3}, f32, device);
    const auto step = [&] {
      optimizer.zero_grad();
      Tape tape;
      const Tensor hidden = recompute(
          [&](const std::vector<Tensor>& v) { return dropout(tanh(in(v[0])), 0.3); }, {x});
      tape.backward(scale(mse_loss(out(hidden) + randn({4, 3}, f32, device) * 0.1, y)));
      optimizer.step({.loss_scale = &scale});
    };
    std::optional<StepGraph> graph;
    for (int i = 0; i < 6; ++i) {
      optimizer.set_lr(0.1 / (i + 1));
      if (!graphed) {
        step();
      } else if (i == 0) {
        graph.emplace(step);
      } else {
        graph->replay();
      }
    }
    return in.weight.to_vector();
  };
  const auto same = [&](auto make) { CHECK(run(make, true) == run(make, false)); };
  same([](const NamedTensors& p) { return nn::Lion(p, {.lr = 0.1, .weight_decay = 0.1}); });
  same([](const NamedTensors& p) {
    return nn::SGD(p, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  });
  same([](const NamedTensors& p) { return nn::Muon(p, {.lr = 0.1, .weight_decay = 0.1}); });
}

TEST_CASE_FIXTURE(EachDevice, "step graph: a generator that is seeded anew counts") {
  Generator generator(1);
  Tensor x;
  StepGraph graph([&] { x = randn({7}, f32, device, generator); });
  for (const std::uint64_t seed : {4u, 9u}) {
    generator.seed(seed);
    graph.replay();
    const std::vector<double> first = x.to_vector();
    graph.replay();
    Generator fresh(seed);
    CHECK(first == randn({7}, f32, device, fresh).to_vector());
    CHECK(x.to_vector() == randn({7}, f32, device, fresh).to_vector());
    CHECK(generator.state() == fresh.state());
  }
}

TEST_CASE_FIXTURE(EachDevice,
                  "step graph: what a step reads from or copies to the host is refused") {
  if (!device.is_cuda()) return;
  const Tensor x = ones({3}, f32, device);
  const auto refused = [&](auto step, const char* message) {
    const std::size_t before = memory_stats(device).current;
    const auto state = default_generator().state();
    CHECK_THROWS_WITH_AS(StepGraph{step}, doctest::Contains(message), Error);
    CHECK(memory_stats(device).current == before);
    CHECK(default_generator().state().seed == state.seed);
  };
  refused([&] { static_cast<void>(sum(x).item()); }, "values are read while a StepGraph");
  refused([&] { static_cast<void>(ones({3}).to(device)); }, "values are copied from the host");
  refused(
      [&] {
        synchronize(device);
        static_cast<void>(x + 1.0);
      },
      "a device is waited for");
  refused([&] { StepGraph inner([&] { static_cast<void>(x + 1.0); }); }, "already");
  int calls = 0;
  refused(
      [&] {
        const Tensor y = dropout(x * 2.0, 0.5);
        if (++calls == 2) throw Error("the step failed");
      },
      "the step failed");
  // The device, the stream and the allocator are as before.
  CHECK((x + 1.0).to_vector() == std::vector<double>{2, 2, 2});
  StepGraph graph([&] { x.copy_from(x + 1.0); });
  graph.replay();
  CHECK(x.to_vector() == std::vector<double>{3, 3, 3});
}

namespace {

/// An optimizer of a program's own, which knows nothing of recordings.
struct Plain : nn::Optimizer {
  explicit Plain(const NamedTensors& parameters)
      : Optimizer("Plain", {{parameters, 0.5, {}}}, false) {}
  void update(std::size_t, double lr, std::span<const ParameterUpdate> list,
              const GradientControl&) override {
    for (const ParameterUpdate& u : list) u.parameter.copy_from(u.parameter - u.gradient * lr);
  }
};

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "step graph: a learning rate that the recording cannot follow") {
  const Tensor w = ones({2}, f32, device).set_requires_grad();
  Plain optimizer({{"w", w}});
  StepGraph graph([&] {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(sum(w));
    optimizer.step();
  });
  graph.replay();
  CHECK(w.to_vector() == std::vector<double>{0, 0});
  optimizer.set_lr(0.25);
  if (device.is_cuda()) {
    CHECK_THROWS_WITH_AS(graph.replay(), doctest::Contains("learning rate was 0.5"), Error);
  } else {
    graph.replay();
    CHECK(w.to_vector() == std::vector<double>{-0.25, -0.25});
  }
}

TEST_CASE_FIXTURE(EachDevice, "step graph: an index out of range is thrown after each replay") {
  const Tensor table = randn({5, 2}, f32, device), index = zeros({3}, i64, device);
  Tensor rows;
  StepGraph graph([&] { rows = embedding(table, index); });
  for (int round = 0; round < 2; ++round) {
    index.fill_(0);
    graph.replay();
    synchronize(device);
    index.fill_(7);
    CHECK_THROWS_WITH_AS((graph.replay(), synchronize(device)), doctest::Contains("is 7"), Error);
  }
  index.fill_(4);
  graph.replay();
  CHECK(rows[2].to_vector() == table[4].to_vector());
}

TEST_CASE_FIXTURE(EachDevice, "step graph: its memory is its own while it lives") {
  if (!device.is_cuda()) return;
  synchronize(device);
  release_cached(device);
  const std::size_t before = memory_stats(device).current;
  Tensor result;
  {
    std::optional<Tensor> x = ones({1 << 18}, f32, device);
    std::optional<StepGraph> graph;
    graph.emplace([&] {
      Tensor h = *x;
      for (int i = 0; i < 10; ++i) h = h * 1.0 + 1.0;  // temporaries take turns
      result = h;
    });
    CHECK(graph->memory().bytes <= std::size_t{4} << 20);
    bool named = false;
    for (const MemoryHolder& holder : memory_report(device).holders) {
      named = named || holder.op == "StepGraph";
    }
    CHECK(named);
    x.reset();  // the graph still reads it
    std::vector<Tensor> others;
    for (int i = 0; i < 12; ++i) others.push_back(full({1 << 18}, 100.0 + i, f32, device));
    graph->replay();
    CHECK(result.to_vector()[77] == 11);
    for (int i = 0; i < 12; ++i) {
      CHECK(others[static_cast<std::size_t>(i)].to_vector()[77] == 100 + i);
    }
    graph.reset();
  }
  // What it left behind stays until the program lets it go.
  const Tensor other = full({1 << 18}, 5.0, f32, device);
  CHECK(result.to_vector()[3] == 11);
  result = Tensor();
  CHECK(memory_stats(device).current == before + other.nbytes());
}

TEST_CASE_FIXTURE(EachDevice, "step graph: moved, empty, and used by two threads in turn") {
  CHECK_THROWS_WITH_AS(StepGraph{std::function<void()>()}, doctest::Contains("empty"), Error);
  const Tensor x = zeros({4}, f32, device);
  std::vector<StepGraph> graphs;
  graphs.reserve(2);
  graphs.emplace_back([&] { x.copy_from(x + 1.0); });
  graphs.push_back(std::move(graphs[0]));
  CHECK_THROWS_WITH_AS(graphs[0].replay(), doctest::Contains("moved from"), Error);
  StepGraph& second = graphs[1];
  second.replay();
  std::thread([&] {
    second.replay();
    synchronize(device);
  }).join();
  CHECK(x.to_vector() == std::vector<double>{3, 3, 3, 3});
}

#ifdef QUIPU_EMULATE
TEST_CASE("step graph: a replay is one launch, without waiting or allocating") {
  const Device cuda("cuda");
  manual_seed(1);
  Trainer trainer(cuda);
  trainer.prepare(0);
  trainer.step();
  synchronize(cuda);
  emulator::clear_counters();
  trainer.step();
  const emulator::HostCalls plain = emulator::host_calls();
  CHECK(plain.launches > 40);  // control
  CHECK(plain.graphs == 0);
  StepGraph graph([&] { trainer.step(); });
  synchronize(cuda);
  emulator::clear_counters();
  for (int i = 0; i < 3; ++i) graph.replay();
  const emulator::HostCalls calls = emulator::host_calls();
  CHECK(calls.graphs == 3);
  CHECK(calls.launches == 0);
  CHECK(calls.waits == 0);
  CHECK(calls.allocations == 0);
  CHECK(calls.uploads == 0);
  CHECK(calls.stream_waits == 0);
  // Every kernel of the step ran, and the one that sets the numbers.
  const std::size_t kernels = emulator::launches().size();
  CHECK(kernels % 3 == 0);
  CHECK(kernels / 3 > 40);
}

TEST_CASE("step graph: one that is gone leaves nothing on the device") {
  const Device cuda("cuda");
  const Tensor table = randn({5, 2}, f32, cuda), index = zeros({3}, i64, cuda);
  const auto make = [&] {
    StepGraph graph([&] { static_cast<void>(embedding(table, index)); });
    graph.replay();
    synchronize(cuda);
  };
  make();  // streams and their scratch memory stay for the next
  emulator::clear_counters();
  for (int i = 0; i < 3; ++i) make();
  const emulator::HostCalls calls = emulator::host_calls();
  CHECK(calls.allocations > 0);
  CHECK(calls.allocations == calls.frees);
}
#endif
