// What is special about CUDA devices: values that go there and back, streams, memory, errors that
// come late. Operators are tested on every device, each in its own file.
#include <cmath>
#include <numeric>

#include "quipu/autograd/tape.h"
#include "quipu/core/devices.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/streams.h"
#include "quipu/quipu.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

const Device cuda("cuda");

/// Cases run where there is a CUDA device, emulated or not.
bool has_cuda() {
  return is_available(cuda);
}

Tensor counting(std::int64_t n, DType dtype = f32) {
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
  return from(values, {n}, dtype);
}

}  // namespace

TEST_CASE("cuda: devices that are not there are named, with what to do") {
  CHECK(is_available(cpu));
  CHECK(is_available("meta:cuda:5"));
  CHECK(device_count(DeviceKind::cpu) == 1);
  CHECK_FALSE(is_available("cuda:127"));
  CHECK_NOTHROW(synchronize(cpu));
  CHECK_NOTHROW(synchronize("meta:cuda"));
  expect_error([] { synchronize("cuda:127"); }, "cuda:127", "not there");
  if (!has_cuda()) return;
  expect_error([] { return zeros({2}, f32, "cuda:127"); }, "zeros: device cuda:127 is not there",
               "CUDA device");
}

TEST_CASE("cuda: values go there and back, in any type and number") {
  if (!has_cuda()) return;
  constexpr std::int64_t chunk = std::int64_t{4} << 20;  // bytes that copies move at a time
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, chunk - 1,
                               chunk, chunk + 1, 3 * chunk + 5}) {
    CAPTURE(n);
    const Tensor x = counting(n, u8);
    CHECK(same_bits(x.to(cuda).to(cpu), x));
  }
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32, u8, boolean}) {
    const Tensor x = counting(300, dtype);
    CHECK(same_bits(x.to(cuda).to(cpu), x));
    CHECK(
        same_bits(x.reshape({30, 10}).t().to(cuda).to(cpu), x.reshape({30, 10}).t().contiguous()));
    CHECK(
        same_bits(x.to(cuda).reshape({30, 10}).t().to(cpu), x.reshape({30, 10}).t().contiguous()));
  }
}

TEST_CASE("cuda: random numbers are those of the CPU") {
  if (!has_cuda()) return;
  const auto drawn = [](Device device, DType dtype, auto draw) {
    Generator g(77);
    return draw(device, dtype, g).to(cpu);
  };
  const auto uniform = [](Device d, DType t, Generator& g) { return rand({3, 37}, t, d, g); };
  const auto normal = [](Device d, DType t, Generator& g) { return randn({3, 37}, t, d, g); };
  const auto whole = [](Device d, DType t, Generator& g) {
    return randint(3, 100, {3, 37}, t, d, g);
  };
  for (const DType dtype : {f64, f32, bf16, f16}) {
    CHECK(same_bits(drawn(cuda, dtype, uniform), drawn(cpu, dtype, uniform)));
    CHECK(allclose(drawn(cuda, dtype, normal), drawn(cpu, dtype, normal)));
  }
  for (const DType dtype : {i64, i32, u8}) {
    CHECK(same_bits(drawn(cuda, dtype, whole), drawn(cpu, dtype, whole)));
  }
}

TEST_CASE("cuda: memory that changes streams is used in order") {
  if (!has_cuda()) return;
  const Stream side(cuda);
  for (int round = 0; round < 4; ++round) {
    Tensor x = full({5000}, round, f32, cuda), y;
    side.wait_for_current();
    {
      const StreamScope scope(side);
      y = x + 1.0;  // x was made on the main stream
      note_use(x);
      const Tensor freed_here = y * 2.0;
    }
    x = Tensor();
    const Tensor taken = full({5000}, 100, f32, cuda);  // lies where x lay, and waits for the sum
    side.current_waits();
    note_use(y);
    CHECK(sum(y).item() == 5000 * (round + 1));
    CHECK(sum(taken).item() == 500000);
  }
  side.synchronize();
}

TEST_CASE("cuda: memory without end is an error that names the device") {
  if (!has_cuda()) return;
  expect_error<OutOfMemory>([] { return empty({std::int64_t{1} << 50}, f32, cuda); },
                            "out of memory on cuda:0", "What would help");
  CHECK(sum(ones({10}, f32, cuda)).item() == 10);  // and nothing else is lost
}

namespace {

/// Twenty steps of a perceptron with two layers, written with the general operators.
struct Training {
  std::vector<double> losses;
  std::size_t peak = 0;
};

Training train(Device device) {
  Generator g(5);
  const auto parameter = [&](const Shape& shape) {
    const Tensor values = (randn(shape, f32, cpu, g) * 0.3).to(device);
    return values.detach().set_requires_grad();
  };
  const PeakMemory peak(device);
  const Tensor x = randn({24, 7}, f32, cpu, g).to(device),
               y = randn({24, 3}, f32, cpu, g).to(device);
  const std::vector<Tensor> parameters{parameter({7, 16}), parameter({16}), parameter({16, 3}),
                                       parameter({3})};
  Training result;
  for (int step = 0; step < 20; ++step) {
    Tape tape;
    const Tensor hidden = tanh(matmul(x, parameters[0]) + parameters[1]);
    const Tensor error = matmul(hidden, parameters[2]) + parameters[3] - y;
    const Tensor loss = mean(error * error);
    tape.backward(loss);
    const NoGrad no_grad;
    for (const Tensor& p : parameters) {
      p.add_(p.grad(), -0.1);
      p.zero_grad();
    }
    if (!device.is_meta()) result.losses.push_back(loss.item());
  }
  result.peak = peak.bytes_above();
  return result;
}

}  // namespace

TEST_CASE("cuda: a perceptron trains as on the CPU, and meta:cuda knows its memory") {
  if (!has_cuda()) return;
  const Training here = train(cuda), there = train(cpu);
  REQUIRE(here.losses.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    CAPTURE(i);
    CHECK(std::abs(here.losses[i] - there.losses[i]) <= 1e-5 * std::abs(there.losses[i]));
  }
  CHECK(here.losses.back() < 0.9 * here.losses.front());
  CHECK(train("meta:cuda").peak == here.peak);
}
