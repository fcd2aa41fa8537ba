// Types and layouts that kernels have code of their own for and that operators seldom have, beside
// the reference.
#include <quipu/quipu.h>

#include "ops/loss_checks.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/kernel_modes.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/pointwise/kernels.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::loss_testing;

TEST_CASE_FIXTURE(EachDevice, "seldom layouts: random numbers into every other element") {
  constexpr std::int64_t n = 1001;
  const PhiloxState state{7, 3};
  for (const DType dtype : {f64, f32, bf16, f16, i64}) {
    CAPTURE(dtype);
    const Tensor dense = empty({n}, dtype, device);
    const Tensor apart = zeros({2 * n}, dtype, device).slice(0, 0, {}, 2);
    const auto check = [&](const auto& draw) {
      draw(dense);
      draw(apart);
      CHECK(same_bits(apart.contiguous(), dense));
    };
    if (dtype == i64) {
      check([&](const Tensor& o) { random_int_kernel(o, state, -5, 1000); });
      continue;
    }
    check([&](const Tensor& o) { random_uniform_kernel(o, state); });
    check([&](const Tensor& o) { random_normal_kernel(o, state); });
  }
}

TEST_CASE_FIXTURE(EachDevice, "seldom layouts: sums and running sums of every type") {
  const KernelCheck check;
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32}) {
    CAPTURE(dtype);
    const Tensor x = (normals({6, 64}, f32, device) * 4).to(dtype);
    for (const Pointwise f : {Pointwise::neg, Pointwise::mul}) {
      const Tensor o = zeros({6, 1}, dtype, device);
      const Operands in = f == Pointwise::neg ? Operands{x.view()} : Operands{x.view(), x.view()};
      CHECK_NOTHROW(pointwise_sum_kernel(Target::write_to(o), f, in, x.shape(), 1));
    }
    CHECK_NOTHROW(cumsum(x, 0));
    CHECK_NOTHROW(cumsum(x, 1));
  }
}

TEST_CASE_FIXTURE(EachDevice, "seldom layouts: rows of every type are gathered and added") {
  const KernelCheck check;
  const Tensor rows = from({3, 0, 3, 1}, {4}, i64, device);
  for (const DType dtype : {f64, f32, bf16, f16, i64, i32}) {
    CAPTURE(dtype);
    const Tensor x = (normals({4, 64}, f32, device) * 4).to(dtype);
    const Tensor dense = zeros({5, 64}, dtype, device);
    const Tensor loose = zeros({5, 128}, dtype, device).slice(1, 0, {}, 2);
    for (const Tensor& o : {dense, loose}) CHECK_NOTHROW(add_at_index(o, rows, x, 0));
    const Tensor index = rows.reshape({4, 1}).expand({4, 64});
    const Tensor o = ones({4, 64}, dtype, device);
    CHECK_NOTHROW(gather_kernel(dense, index, Target{o, true}, 0));
  }
}

TEST_CASE_FIXTURE(EachDevice, "seldom layouts: classes of every type are drawn") {
  const KernelCheck check;
  for (const DType dtype : {f64, f32, bf16, f16}) {
    for (const std::int64_t classes : {20, 400, 2048}) {
      CAPTURE(dtype);
      CAPTURE(classes);
      CHECK_NOTHROW(sample(normals({3, classes}, dtype, device)));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "seldom layouts: flao with sums of odd size in several parts") {
  const KernelCheck check;
  for (const DType dtype : {f64, f32}) {
    const auto x = [&](std::int64_t tokens, std::int64_t features) {
      return normals({1, 1, tokens, features}, dtype, device).set_requires_grad();
    };
    Tape tape;
    const Tensor o = flao(x(4, 3), x(1100, 3), x(1100, 5), x(4, 5));
    CHECK_NOTHROW(tape.backward(sum(o)));
  }
}
