// The two kinds of failure, and mistakes that any call can meet.
#include "quipu/core/error.h"

#include <limits>
#include <thread>

#include "quipu/autograd/tape.h"
#include "quipu/core/context.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

TEST_CASE("errors: a user's mistake and our own bug are different types") {
  expect_error<Error>([] { check(false, "n is ", 3, ", not ", 2.5, " or ", true); },
                      "n is 3, not 2.5 or true");
  expect_error<InternalError>([] { ensure(false, "slot ", 7); }, "bug in quipu", "slot 7",
                              "please report");
  CHECK_NOTHROW(check(true, "fine"));
  CHECK_NOTHROW(ensure(true, "fine"));
  CHECK_FALSE(std::is_base_of_v<Error, InternalError>);
  CHECK(std::is_base_of_v<Error, OutOfMemory>);
  CHECK(std::is_base_of_v<std::runtime_error, Error>);
  CHECK(std::is_base_of_v<std::logic_error, InternalError>);
}

TEST_CASE("errors: a message begins with the operator that runs") {
  CHECK(*testing::thrown_message<Error>([] { fail("wrong"); }) == "wrong");
  const OpScope outer("outer");
  CHECK(*testing::thrown_message<Error>([] { fail("wrong"); }) == "outer: wrong");
  {
    const OpScope inner("inner");
    CHECK(*testing::thrown_message<Error>([] { fail("wrong"); }) == "inner: wrong");
    CHECK(*testing::thrown_message<InternalError>([] { ensure(false, "wrong"); }) ==
          "bug in quipu (in inner): wrong; please report it");
  }
  CHECK(*testing::thrown_message<Error>([] { fail("wrong"); }) == "outer: wrong");
  std::string elsewhere;
  std::jthread([&] { elsewhere = *testing::thrown_message<Error>([] { fail("wrong"); }); }).join();
  CHECK(elsewhere == "wrong");
}

TEST_CASE("errors: the operator's name goes with an exception") {
  expect_error([] { return zeros({2}).reshape({3}); }, "reshape: ");
  CHECK(thread_context().op == nullptr);
  CHECK(*testing::thrown_message<Error>([] { fail("wrong"); }) == "wrong");
}

TEST_CASE("errors: what goes into a message") {
  const auto text = [](const auto&... parts) { return detail::concat(parts...); };
  CHECK(text(Shape{2, 3}, ' ', f32, ' ', cpu) == "(2, 3) f32 cpu");
  CHECK(text(1.0 / 3, "|", std::int64_t{-5}, "|", false, "|", std::string("s")) ==
        "0.3333333|-5|false|s");
  CHECK(text(std::numeric_limits<double>::quiet_NaN()).find("nan") != std::string::npos);
  CHECK(text(Device("cuda:1"), boolean, Scalar(2)) == "cuda:1bool2");
}

TEST_CASE("errors: an undefined tensor says what it is, whatever it is used for") {
  const Tensor nothing;
  const char* says = "undefined tensor";
  expect_error([&] { return nothing.shape(); }, says, "never assigned");
  expect_error([&] { return nothing.numel(); }, says);
  expect_error([&] { return nothing.device(); }, says);
  expect_error([&] { return nothing.item(); }, "item: ", says);
  expect_error([&] { return nothing.data<float>(); }, says);
  expect_error([&] { return nothing.to(f64); }, "to: ", says);
  expect_error([&] { return nothing.reshape({1}); }, "reshape: ", says);
  expect_error([&] { return nothing[0]; }, "select: ", says);
  expect_error([&] { return nothing(all); }, "index: ", says);
  expect_error([&] { return nothing.clone(); }, "clone: ", says);
  expect_error([&] { return nothing.detach(); }, says);
  expect_error([&] { nothing.fill_(1); }, "fill_: ", says);
  expect_error([&] { nothing.set_requires_grad(); }, "set_requires_grad: ", says);
  expect_error([&] { return nothing + ones({1}); }, "add: ", says);
  expect_error([&] { return compare(nothing, nothing); }, "compare: ", says);
  expect_error(
      [&] {
        Tape tape;
        tape.backward(nothing);
      },
      "backward: ");
  CHECK(to_string(nothing) == says);
  CHECK_FALSE(nothing.defined());
  CHECK_FALSE(nothing.requires_grad());
  CHECK_FALSE(nothing.grad().defined());
}

TEST_CASE("errors: gradients of what has none") {
  expect_error([] { ones({2}, i64).set_requires_grad(); }, "set_requires_grad: ", "i64",
               "floating");
  CHECK_NOTHROW(ones({2}, i64).set_requires_grad(false));
  const Tensor w = ones({2});
  expect_error([&] { w.add_hook([](const Tensor& g) { return g; }); }, "add_hook: ", "(2,)");
  w.set_requires_grad();
  expect_error([&] { w.set_grad(ones({3})); }, "set_grad: ", "(3,)", "(2,)");
  expect_error([&] { w.set_grad(ones({2}, f64)); }, "set_grad: ", "f64", "f32", "set_grad_dtype");
  expect_error([&] { w.set_grad(ones({2}, f32, "meta:cpu")); }, "set_grad: ", "meta:cpu", "cpu");
  expect_error([&] { w.set_grad(ones({1}).expand({2})); }, "set_grad: ", "expanded", "clone()");
  expect_error([&] { w.set_grad_dtype(i32); }, "set_grad_dtype: ", "i32");
  w.set_grad(ones({2}));
  expect_error([&] { w.set_grad_dtype(f64); }, "set_grad_dtype: ", "f32", "zero_grad()");
  w.zero_grad();
  w.set_grad_dtype(f64);
  CHECK_NOTHROW(w.set_grad(ones({2}, f64)));
  w.set_grad({});
  CHECK_FALSE(w.grad().defined());
  Tape tape;
  const Tensor y = w * 2.0;
  expect_error([&] { y.set_requires_grad(); }, "set_requires_grad: ", "recorded", "detach()");
  expect_error([&] { y.set_grad_dtype(f64); }, "set_grad_dtype: ", "recorded");
  CHECK(y.requires_grad());
}

TEST_CASE("errors: turning a gradient off does not relabel what was never a parameter") {
  const auto gradients = [] {
    return memory_stats("meta:cpu").by_category[static_cast<std::size_t>(Category::gradient)];
  };
  const std::size_t before = gradients();
  const Tensor g = zeros({1000}, f32, "meta:cpu", Category::gradient);
  g.set_requires_grad(false);
  CHECK(gradients() == before + 4096);
}

TEST_CASE("errors: a kernel that is not there") {
  if (fill_kernel.provided(Variant::cuda)) return;
  expect_error([] { detail::throw_no_kernel("act_forward", DeviceKind::cuda); }, "no CUDA back end",
               "act_forward", "QUIPU_CUDA");
  expect_error<InternalError>([] { detail::throw_no_kernel("act_forward", DeviceKind::cpu); },
                              "act_forward", "cpu");
  expect_error<InternalError>([] { fill_kernel(View(), 0); }, "fill", "without any view");
}
