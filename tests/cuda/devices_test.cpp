// Several CUDA devices. The emulator has two here; elsewhere these cases need as many GPUs.
#include <thread>
#include <vector>

#include "quipu/quipu.h"
#include "support/support.h"

namespace {

using namespace quipu;

const Device first("cuda:0"), second("cuda:1");

bool has_two() {
#ifdef QUIPU_EMULATE
  REQUIRE(device_count(DeviceKind::cuda) >= 2);
#endif
  return device_count(DeviceKind::cuda) >= 2;
}

/// Losses of some steps, and the parameters after them.
std::vector<Tensor> train(Device device) {
  Generator g(7);
  const auto parameter = [&](const Shape& shape) {
    return (randn(shape, f32, cpu, g) * 0.3).to(device).detach().set_requires_grad();
  };
  const NamedTensors parameters{{"a", parameter({7, 16})}, {"b", parameter({16, 3})}};
  const Tensor x = randn({24, 7}, f32, cpu, g).to(device),
               y = randint(0, 3, {24}, i64, cpu, g).to(device);
  nn::AdamW optimizer(parameters, {.lr = 0.05});
  std::vector<Tensor> results;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    Tape tape;
    const Tensor loss =
        cross_entropy(matmul(tanh(matmul(x, parameters[0].second)), parameters[1].second), y);
    tape.backward(loss);
    optimizer.step({.max_norm = 1.0});
    results.push_back(loss.detach().to(cpu));
  }
  for (const auto& [name, p] : parameters) results.push_back(p.detach().to(cpu));
  return results;
}

}  // namespace

TEST_CASE("devices: one model on each, in two threads, trains as it does alone") {
  if (!has_two()) return;
  const std::vector<Tensor> alone = train(first);
  std::vector<Tensor> here, there;
  std::thread other([&] { there = train(second); });
  here = train(first);
  other.join();
  REQUIRE(here.size() == alone.size());
  REQUIRE(there.size() == alone.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(here[i], alone[i]));
    CHECK(same_bits(there[i], alone[i]));
  }
}

TEST_CASE("devices: values and gradients go from one to the other") {
  if (!has_two()) return;
  const Tensor x = randn({37, 5}).set_requires_grad();
  Tape tape;
  const Tensor here = (x * 2.0).to(first);
  const Tensor there = here.t().to(second);  // not contiguous
  CHECK(there.device() == second);
  CHECK(same_bits(there.detach().to(cpu), (x.detach() * 2.0).t().contiguous()));
  tape.backward(sum(there.to(first) * here.t()));
  CHECK(allclose(x.grad(), x.detach() * 8.0));
  CHECK(same_bits(arange(0, 3, 1, i64).to(second).to(first).to(cpu), arange(0, 3, 1, i64)));
  CHECK(zeros({0, 3}, f32, first).to(second).shape() == Shape{0, 3});
}

TEST_CASE("devices: operands on two of them are an error, and each has its own memory") {
  if (!has_two()) return;
  const Tensor a = ones({1000}, f32, first);
  const std::size_t before = memory_stats(first).current;
  const Tensor b = ones({1000}, f32, second);
  CHECK(memory_stats(first).current == before);
  CHECK(memory_stats(second).current == 4096);
  expect_error([&] { return a + b; }, "cuda:0", "cuda:1");
  CHECK(sum(b).item() == 1000);
  synchronize(second);
}

TEST_CASE("devices: index errors belong to the device that met them") {
  if (!has_two()) return;
  const Tensor x = ones({4}, f32, second), bad = from({9}, {1}, i64).to(second);
  const Tensor o = index_select(x, 0, bad);
  CHECK_NOTHROW(synchronize(first));
  expect_error([&] { return o.to(cpu); }, "index_select: index at (0,) is 9");
}
