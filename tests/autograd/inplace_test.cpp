// Changes in place, copies and casts.
#include "quipu/autograd/knot.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

namespace {

using namespace quipu;

void check_values(const Tensor& x, const std::vector<double>& expected) {
  CHECK(x.to_vector() == expected);
}

TEST_CASE_FIXTURE(EachDevice, "inplace: arithmetic") {
  const Tensor x = from({1.0, 2.0, 3.0, 4.0}, {2, 2}, f32, device);
  const Tensor row = from({10.0, 20.0}, f32, device);
  check_values(x.add_(row), {11, 22, 13, 24});
  check_values(x.add_(row, -0.5), {6, 12, 8, 14});
  check_values(x.sub_(row), {-4, -8, -2, -6});
  check_values(x.add_(8), {4, 0, 6, 2});
  check_values(x.mul_(0.5), {2, 0, 3, 1});
  check_values(x.mul_(row), {20, 0, 30, 20});
  check_values(x.div_(row), {2, 0, 3, 1});
  check_values(x.clamp_(1, 2.5), {2, 1, 2.5, 1});
  check_values(x.lerp_(row, 0.5), {6, 10.5, 6.25, 10.5});
  check_values(x.fill_(3), {3, 3, 3, 3});
  check_values(x.addcmul_(row, row, 0.01), {3 + 1, 3 + 4, 3 + 1, 3 + 4});
  check_values(x.addcdiv_(row, row, -2), {2, 5, 2, 5});
  check_values(x.zero_(), {0, 0, 0, 0});
  x += row;
  x *= 2;
  x -= row;
  check_values(x, {10, 20, 10, 20});
}

TEST_CASE_FIXTURE(EachDevice, "inplace: whole numbers and other types") {
  const Tensor x = from({1, 2, 3}, i64, device);
  check_values(x.add_(from({1, 1, 1}, u8, device), 3), {4, 5, 6});
  check_values(x.mul_(2).clamp_(9, 11), {9, 10, 11});
  check_values(x.addcmul_(x, x), {90, 110, 132});
  const Tensor y = from({0.5, 1.5, 2.5}, f64, device);
  check_values(y.add_(x, 0.5), {45.5, 56.5, 68.5});
  check_values(y.copy_from(x), {90, 110, 132});
  const Tensor z = empty({2, 3}, bf16, device);
  check_values(z.copy_from(from({0.5, 1.0, 257.0}, f32, device)), {0.5, 1, 256, 0.5, 1, 256});
}

TEST_CASE_FIXTURE(EachDevice, "inplace: strided targets and sources that overlap") {
  const Tensor whole = arange(0, 12, 1, f32, device).reshape({3, 4});
  whole.slice(1, 0, {}, 2).mul_(0);
  check_values(whole, {0, 1, 0, 3, 0, 5, 0, 7, 0, 9, 0, 11});
  whole.t().add_(from({1.0, 2.0, 3.0}, f32, device));
  check_values(whole, {1, 2, 1, 4, 2, 7, 2, 9, 3, 12, 3, 14});

  const Tensor x = arange(0, 5, 1, f32, device);
  x.slice(0, 1).copy_from(x.slice(0, 0, 4));  // shifted by one: the old values count
  check_values(x, {0, 0, 1, 2, 3});
  x.add_(x);
  check_values(x, {0, 0, 2, 4, 6});
  const Tensor square = from({1.0, 2.0, 3.0, 4.0}, {2, 2}, f32, device);
  square.add_(square.t());
  check_values(square, {2, 5, 5, 8});
  square.mul_(square.select(0, 1));  // its own last row, for every row
  check_values(square, {10, 40, 25, 64});
}

TEST_CASE("inplace: errors") {
  const Tensor x = zeros({2, 3}), whole = zeros({2, 3}, i64);
  expect_error([&] { x.add_(zeros({4, 2, 3})); }, "add_", "other has shape (4, 2, 3)", "(2, 3)");
  expect_error([&] { whole.add_(x); }, "add_", "other is f32", "i64");
  expect_error([&] { whole.mul_(0.5); }, "mul_", "0.5");
  expect_error([&] { whole.fill_(0.5); }, "fill_", "0.5");
  expect_error([&] { whole.div_(whole); }, "div_", "i64", ".to(f32)");
  expect_error([&] { x.addcmul_(whole, x); }, "addcmul_", "a is i64");
  expect_error(
      [&] {
        x.expand({4, 2, 3}).zero_();
      },
      "fill_", "expanded along dimension 0", "clone()");
  expect_error([&] { x.add_(zeros({3}, f32, "meta:cpu")); }, "add_", "other on meta:cpu");
  expect_error([&] { x.clamp_(2, 1); }, "clamp_", "low is 2");
  const Tensor w = ones({3}).set_requires_grad();
  Tape tape;
  expect_error([&] { x.add_(w); }, "add_", "other wants a gradient", "detach()");
  x.add_(w.detach());
  const NoGrad pause;
  x.add_(w);
  check_values(x, {2, 2, 2, 2, 2, 2});
}

TEST_CASE_FIXTURE(EachDevice, "cast: every type into every other") {
  const std::vector<double> values{0, 1, 2, 100};
  for (const DType a : {f64, f32, bf16, f16, i64, i32, u8, boolean}) {
    for (const DType b : {f64, f32, bf16, f16, i64, i32, u8, boolean}) {
      CAPTURE(to_string(a));
      CAPTURE(to_string(b));
      const Tensor o = from(values, {4}, a, device).to(b);
      CHECK(o.dtype() == b);
      if (a == boolean || b == boolean) {
        check_values(o, {0, 1, 1, 1});
      } else {
        check_values(o, values);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "cast: nothing is copied where nothing changes") {
  const Tensor x = ones({2, 3}, f32, device);
  CHECK(x.to(f32).same_as(x));
  CHECK(x.to(device).same_as(x));
  CHECK(x.contiguous().same_as(x));
  CHECK(!x.clone().same_as(x));
  CHECK(&x.clone().storage() != &x.storage());
  const Tensor dense = x.t().contiguous();
  CHECK(dense.is_contiguous());
  CHECK(dense.shape() == Shape{3, 2});
}

TEST_CASE_FIXTURE(EachDevice,
                  "cast: gradients go back in the type and to the device they came from") {
  const Tensor x = from({1.0, 2.0}, bf16, device).set_requires_grad();
  Tape tape;
  tape.backward(sum(x.to(f32).clone() * 3));
  CHECK(x.grad().dtype() == bf16);
  check_values(x.grad(), {3, 3});
}

TEST_CASE("cast: meta has no values to give") {
  const Device meta("meta:cpu");
  const Tensor x = ones({2, 3}, bf16);
  const Tensor there = x.to(meta);
  CHECK(there.device() == meta);
  CHECK(there.shape() == Shape{2, 3});
  CHECK(there.dtype() == bf16);
  expect_error([&] { there.to(cpu); }, "to", "meta:cpu has no values");
  CHECK(there.to(Device("meta:cuda")).device() == Device("meta:cuda"));
  zeros({3}).to(meta).copy_from(ones({3}));
}

}  // namespace
