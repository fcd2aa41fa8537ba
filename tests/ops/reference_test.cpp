// Every operator of the tables beside the reference, kernel by kernel, in every type and layout,
// with gradients written and added to; then random calls.
#include <quipu/quipu.h>

#include "random_calls/calls.h"
#include "support/operator_cases.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

TEST_CASE_FIXTURE(EachDevice, "reference: the table of operators, all types and layouts") {
  int calls = 0;
  for (const OperatorCase& c : operator_cases()) {
    if (c.group == "large" && is_emulated(device)) continue;
    for (const Layout layout : all_layouts) {
      if (!c.has(layout)) continue;
      for (const DType dtype : {f64, f32, bf16, f16}) {
        const std::string name = c.name() + " " + quipu::testing::name_of(layout);
        CAPTURE(name);
        CAPTURE(dtype);
        std::vector<Tensor> leaves = c.make_inputs(layout, dtype, device);
        for (const Tensor& x : leaves) x.set_requires_grad();
        const KernelCheck check;
        Tape tape;
        const Tensor o = c.function(layout)(leaves);
        const Tensor upstream = linspace(0.25, 1, o.numel(), f32, device).to(o.dtype());
        for (int walk = 0; walk < 2; ++walk) {
          CHECK_NOTHROW(tape.backward(o, {upstream.reshape(o.shape()), true}));
        }
        ++calls;
      }
    }
  }
  CHECK(calls > 1000);
}

TEST_CASE_FIXTURE(EachDevice, "reference: random calls of every operator") {
  const std::uint64_t calls = is_emulated(device) ? 60 : 1500;
  for (std::uint64_t seed = 1; seed <= calls; ++seed) CHECK_NOTHROW(calls::run_call(seed, device));
}
