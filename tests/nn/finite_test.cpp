// Losses that are not finite.
#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Device meta_cpu(DeviceKind::cpu, 0, true);

}  // namespace

TEST_CASE("check_finite: names the step and the operator that was first") {
  const Tensor x = from({1.0f, -2.0f}).set_requires_grad();
  const auto step = [&] {
    Tape tape;
    const Tensor loss = sum(sqrt(x * 2) + 1);
    tape.backward(loss);
    return loss.detach();
  };
  expect_error([&] { check_finite(step(), 17, step); }, "step 17: the loss is nan", "sqrt",
               "anomaly");
  expect_error([&] { check_finite(step(), 17); }, "step 17: the loss is nan", "AnomalyMode");
  expect_error([&] { check_finite(scalar_tensor(infinity), 3, [] {}); }, "step 3: the loss is inf",
               "every operator was finite");
  check_finite(scalar_tensor(1.0), 3, [] { fail("not to be called"); });
  check_finite(zeros({}, f32, meta_cpu), 3);
  expect_error([&] { check_finite(ones({2}), 3); }, "one number");
}

TEST_CASE("check_finite: a parameter that is broken already is named") {
  const Tensor good = ones({3}), bad = from({1.0f, std::nanf("")});
  expect_error(
      [&] {
        check_finite(scalar_tensor(infinity), 5, {}, {{"good", good}, {"layer.bad", bad}});
      },
      "step 5", "parameter layer.bad is not finite already", "learning rate");
}

TEST_CASE("check_finite: a gradient that blows up in backward is found, too") {
  const Tensor x = zeros({2}).set_requires_grad();
  const auto rerun = [&] {
    Tape tape;
    tape.backward(sum(sqrt(x)));
  };
  expect_error([&] { check_finite(scalar_tensor(infinity), 1, rerun); }, "step 1", "sqrt");
}
