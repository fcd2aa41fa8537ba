// Where the tape leaves gradients: hooks, views, broadcasting, buffers that are shared and gradient
// types.
#include <doctest/doctest.h>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/quipu.h"
#include "support/leaves.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

struct WritesBoth {
  static constexpr const char* name = "writes_both";
  Tensor forward(const Tensor& a, const Tensor& b) { return a + b; }
  void backward(const Tensor& d_o, Grads& d) const {
    const Grad first = d[0], second = d[1];  // both out at once
    REQUIRE(first.view.data != second.view.data);
    const Tensor twice = d_o * 2.0;
    add_into_kernel(second, twice);
    add_into_kernel(first, d_o);
  }
};

struct NotesBoth {
  static constexpr const char* name = "notes_both";
  const void** where;
  Tensor forward(const Tensor& a, const Tensor& b) { return a + b; }
  void backward(const Tensor& d_o, Grads& d) const {
    const Grad first = d[0], second = d[1];
    where[0] = first.view.data;
    where[1] = second.view.data;
    add_into_kernel(second, d_o);
    add_into_kernel(first, d_o);
  }
};

}  // namespace

TEST_CASE("tape: a hook runs once, with the finished gradient, and its result is used") {
  const Tensor x = leaf({1, 2});
  int calls = 0;
  Values seen;
  Tape tape;
  const Tensor y = x * 3.0;
  y.add_hook([&](const Tensor& g) {
    ++calls;
    seen = values(g);
    return g * 10.0;
  });
  tape.backward(sum(y * 2.0 + y * 5.0));
  CHECK(calls == 1);
  CHECK(seen == Values{7, 7});
  CHECK(values(x.grad()) == Values{210, 210});
}

TEST_CASE("tape: a hook on a leaf sees this walk's gradient only, and its result is then added") {
  const Tensor x = leaf({1, 2});
  x.set_grad(from({100.0, 200.0}));
  Values seen;
  x.add_hook([&](const Tensor& g) {
    seen = values(g);
    return g * 2.0;
  });
  Tape tape;
  tape.backward(sum(x * x + x));
  CHECK(seen == Values{3, 5});
  CHECK(values(x.grad()) == Values{106, 210});
}

TEST_CASE("tape: a hook on a view gets a buffer of its own") {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2});
  Tape tape;
  const Tensor row = x[1];
  row.add_hook([](const Tensor& g) { return g * 10.0; });
  tape.backward(sum(row * 3.0) + sum(x));
  CHECK(values(x.grad()) == Values{1, 1, 31, 31});
}

TEST_CASE(
    "tape: a hook that returns nothing keeps the gradient; one of another shape is an error") {
  const Tensor x = leaf({1, 2});
  x.add_hook([](const Tensor&) { return Tensor(); });
  {
    Tape tape;
    tape.backward(sum(x * 2.0));
    CHECK(values(x.grad()) == Values{2, 2});
  }
  x.add_hook([](const Tensor&) { return from({1.0}); });
  Tape tape;
  expect_error([&] { tape.backward(sum(x * 2.0)); }, "hook", "(1,)", "(2,)");
  expect_error([&] { from({1.0}).add_hook([](const Tensor& g) { return g; }); }, "add_hook",
               "no gradient");
}

TEST_CASE("tape: views pass a strided part of the parent's gradient") {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3});
  Tape tape;
  const Tensor y = x.t()(slice(1, 3));  // (2, 2)
  PeakMemory peak;
  tape.backward(y, {.upstream = from({1.0, 2.0, 3.0, 4.0}, {2, 2})});
  CHECK(values(x.grad()) == Values{0, 1, 3, 0, 2, 4});
  CHECK(peak.bytes_above() <= 512 * 2);  // the leaf's gradient; the upstream was there
}

TEST_CASE("tape: broadcasting reduces before it adds") {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6}, {2, 3}), row = leaf({1, 2, 3}), one = leaf({2}, {});
  Tape tape;
  tape.backward(sum(x * row + one));
  CHECK(values(row.grad()) == Values{5, 7, 9});
  CHECK(row.grad().shape() == Shape{3});
  CHECK(values(one.grad()) == Values{6});
  CHECK(one.grad().dim() == 0);
}

TEST_CASE("tape: expand reduces, and its gradient never has stride 0") {
  const Tensor x = leaf({1, 2}, {2, 1});
  Tape tape;
  const Tensor y = x.expand({2, 3});
  y.add_hook([](const Tensor& g) {
    CHECK(g.strides() == Strides{3, 1});
    return g;
  });
  tape.backward(sum(y * from({1.0, 2.0, 3.0})));
  CHECK(values(x.grad()) == Values{6, 6});
}

TEST_CASE("tape: one kernel that writes two gradients of one tensor gets a second buffer") {
  const Tensor x = leaf({1, 2});
  Tape tape;
  tape.backward(sum(apply(WritesBoth{}, x, x)));
  CHECK(values(x.grad()) == Values{3, 3});
}

TEST_CASE("tape: disjoint parts of one tensor need no second buffer") {
  const Tensor x = leaf({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const void* where[2];
  Tape tape;
  tape.backward(sum(apply(NotesBoth{where}, x(all, slice(0, 2)), x(all, slice(2, 4)))));
  CHECK(where[0] == x.grad().raw_data());
  CHECK(where[1] == x.grad().data<double>() + 2);
  CHECK(values(x.grad()) == Values(8, 1.0));
}

TEST_CASE("tape: a gradient has its own dtype on request") {
  const Tensor x = full({4}, 1.0, bf16);
  x.set_requires_grad().set_grad_dtype(f32);
  // 256 + 1/2 has no bf16, so a bf16 sum would stay at 256.
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.backward(sum(x * (i == 0 ? 256.0 : 0.5)));
  }
  CHECK(x.grad().dtype() == f32);
  CHECK(values(x.grad()) == Values(4, 256.5));
  expect_error([&] { x.set_grad(full({4}, 1.0, bf16)); }, "set_grad", "bf16", "f32");
}

TEST_CASE("tape: matmul and views add into an f32 gradient of bf16 parameters") {
  const Tensor w = randn({6, 4}, bf16), x = randn({5, 4}, bf16);
  w.set_requires_grad().set_grad_dtype(f32);
  Tape tape;
  tape.backward(sum(matmul(x, w.t())));
  CHECK(w.grad().dtype() == f32);
  const Tensor expected = sum(x.to(f32), 0).expand({6, 4}).contiguous();
  CHECK(compare(w.grad(), expected, {.relative = 1e-5, .absolute = 1e-5}));
}
