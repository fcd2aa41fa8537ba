// Pinned memory, on machines with and without a CUDA device. How copies from it run is in
// tests/cuda/counted/.
#include "quipu/quipu.h"
#include "support/support.h"

namespace {

using namespace quipu;

TEST_CASE("pinned: a copy in pinned memory where there is a CUDA device, else the tensor itself") {
  const Tensor x = randn({3, 5});
  const Tensor pinned = pin_memory(x.t());
  CHECK(is_pinned(pinned) == is_available("cuda"));
  CHECK(pinned.device() == cpu);
  CHECK(same_bits(pinned, x.t()));
  CHECK(pin_memory(pinned).storage().data() == pinned.storage().data());
  CHECK_FALSE(is_pinned(x));
  const Tensor meta = empty({3, 5}, f32, "meta:cpu");
  CHECK(pin_memory(meta).device() == meta.device());
  CHECK_FALSE(is_pinned(meta));
  expect_error([] { return pin_memory(empty({2}, f32, "meta:cuda")); },
               "pin_memory: x is on meta:cuda", "CPU");
}

TEST_CASE("pinned: gradients pass through") {
  const Tensor x = randn({4}).set_requires_grad();
  Tape tape;
  tape.backward(sum(pin_memory(x) * 3.0));
  CHECK(same_bits(x.grad(), full({4}, 3)));
}

TEST_CASE_FIXTURE(EachDevice, "pinned: to_async gives what to gives") {
  const Tensor x = randn({300, 7});
  for (const Tensor& host : {x, x.t(), x.slice(0, 10, 20), zeros({0, 3})}) {
    CHECK(same_bits(to_async(host, device).to(cpu), host));
    CHECK(same_bits(to_async(pin_memory(host), device).to(cpu), host));
    CHECK(same_bits(to_async(to_async(host, device), cpu), host));
  }
  CHECK(to_async(x, meta_of(device)).shape() == x.shape());
}

}  // namespace
