// Each rule of the tape that autograd/tape.h lists, one case a rule: what is recorded, and how it
// is walked.
#include <doctest/doctest.h>

#include <cmath>
#include <thread>

#include "quipu/quipu.h"
#include "support/leaves.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

struct Fails {
  static constexpr const char* name = "fails";
  Tensor forward(const Tensor& x) { return x + 0.0; }
  void backward(const Tensor&, Grads&) const { throw Error("on purpose"); }
};

struct Counts {
  static constexpr const char* name = "counts";
  int* calls;
  Tensor forward(const Tensor& x) { return x + 0.0; }
  void backward(const Tensor& d_o, Grads& d) const {
    ++*calls;
    d.pass(0, d_o);
  }
};

struct Cube {
  static constexpr const char* name = "cube";
  Saved x;
  Tensor forward(const Tensor& in) {
    x = save(in);
    return in * in * in;
  }
  void backward(const Tensor& d_o, Grads& d) const { d.add(0, 3 * d_o * x.get() * x.get()); }
};

}  // namespace

TEST_CASE("tape: a loss gives its leaves their gradients") {
  const Tensor x = leaf({1, 2, 3}), y = leaf({4, 5, 6});
  Tape tape;
  tape.backward(sum(x * y + x));
  CHECK(values(x.grad()) == Values{5, 6, 7});
  CHECK(values(y.grad()) == Values{1, 2, 3});
}

TEST_CASE("tape: without a tape nothing is recorded and nothing is saved") {
  const Tensor x = leaf({1, 2, 3});
  const Tensor y = exp(x * x);
  CHECK_FALSE(y.requires_grad());
  CHECK(memory_stats().by_category[static_cast<std::size_t>(Category::saved)] == 0);
}

TEST_CASE("tape: inputs that want no gradient are not recorded") {
  const Tensor x = from({1.0, 2.0});
  Tape tape;
  const Tensor y = exp(x);
  CHECK(tape.size() == 0);
  expect_error([&] { tape.backward(sum(y)); }, "backward", "no tape recorded this loss");
}

TEST_CASE("tape: a million knots do not overflow the stack") {
  const Tensor x = leaf({1});
  Tensor y = x;
  Tape tape;
  for (int i = 0; i < 1'000'000; ++i) y = y + 1e-6;
  tape.backward(y);
  CHECK(values(x.grad()) == Values{1});
}

TEST_CASE("tape: a long chain of views does not overflow the stack either") {
  const Tensor x = leaf({1, 2});
  Tensor y = x;
  Tape tape;
  for (int i = 0; i < 200'000; ++i) y = y.reshape(i % 2 ? Shape{2} : Shape{1, 2});
  tape.backward(sum(y * y));
  CHECK(values(x.grad()) == Values{2, 4});
}

TEST_CASE("tape: gradients are added into what is there") {
  const Tensor x = leaf({1, 2});
  for (int i = 0; i < 3; ++i) {
    Tape tape;
    tape.backward(sum(x * 2.0));
  }
  CHECK(values(x.grad()) == Values{6, 6});
  const void* where = x.grad().raw_data();
  Tape tape;
  tape.backward(sum(x * x));
  CHECK(x.grad().raw_data() == where);
  CHECK(values(x.grad()) == Values{8, 10});
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("tape: a second walk needs retain, and the error names the knot") {
  const Tensor x = leaf({3});
  Tape tape;
  const Tensor y = x * x;
  tape.backward(y, {.retain = true});
  tape.backward(y);
  CHECK(values(x.grad()) == Values{12});
  expect_error([&] { tape.backward(y); }, "backward", "knot 0 (mul)", "retain");
  CHECK(values(x.grad()) == Values{12});  // nothing was touched
}

TEST_CASE("tape: a second loss may use knots that the first did not reach") {
  const Tensor x = leaf({3});
  Tape tape;
  const Tensor a = x * 2.0, b = x * 5.0;
  tape.backward(a);
  tape.backward(b);
  CHECK(values(x.grad()) == Values{7});
}

TEST_CASE("tape: a walk frees each knot as soon as it is undone") {
  const Tensor x = rand({1024}, f64);
  x.set_requires_grad();
  Tape tape;
  Tensor y = x;
  for (int i = 0; i < 8; ++i) y = exp(y) * 0.1;
  const Tensor loss = sum(y);
  y = Tensor();
  const std::size_t held = memory_stats().by_category[static_cast<std::size_t>(Category::saved)];
  CHECK(held >= 8 * 1024 * 8);
  PeakMemory peak;
  tape.backward(loss);
  CHECK(memory_stats().by_category[static_cast<std::size_t>(Category::saved)] == 0);
  // Two gradient buffers beside what was held at the start, and the leaf's: never one a knot.
  CHECK(peak.bytes_above() <= 3 * 1024 * 8 + 4096);
}

TEST_CASE("tape: tapes nest and the inner one records") {
  const Tensor x = leaf({2});
  Tape outer;
  const Tensor y = x * x;
  {
    Tape inner;
    const Tensor z = x * 3.0;
    CHECK(outer.size() == 1);
    CHECK(inner.size() == 1);
    inner.backward(z);
    CHECK(values(x.grad()) == Values{3});
    expect_error([&] { y* y; }, "mul", "another tape", "detach()");
  }
  outer.backward(y);
  CHECK(values(x.grad()) == Values{7});
}

TEST_CASE("tape: a tensor of a tape that is gone is an error until detach") {
  const Tensor x = leaf({2});
  Tensor y;
  {
    Tape gone;
    y = x * x;
  }
  CHECK_FALSE(y.requires_grad());
  CHECK(values(y + 1.0) == Values{5});  // no tape: nothing to get wrong
  Tape tape;
  expect_error([&] { y + 1.0; }, "add", "a tape that is gone", "detach()");
  const Tensor z = y.detach() * x;
  tape.backward(z);
  CHECK(values(x.grad()) == Values{4});
}

TEST_CASE("tape: a loss of another tape, or none, says so") {
  const Tensor x = leaf({2});
  Tensor y;
  {
    Tape gone;
    y = x * x;
  }
  Tape tape;
  expect_error([&] { tape.backward(y); }, "backward", "another tape", "gone");
  expect_error([&] { tape.backward(from({1.0})); }, "backward", "no tape recorded this loss");
  const Tensor wide = x * from({1.0, 2.0});
  expect_error([&] { tape.backward(wide); }, "backward", "(2,)", "upstream");
  expect_error(
      [&] {
        tape.backward(wide, {.upstream = from({1.0, 2.0, 3.0})});
      },
      "upstream", "(3,)", "(2,)");
  expect_error(
      [&] {
        tape.backward(wide, {.upstream = from({1.0f, 2.0f})});
      },
      "upstream", "f32", "f64");
}

TEST_CASE("tape: other threads record nothing unless they open a tape") {
  const Tensor x = leaf({2});
  Tape tape;
  std::thread([&] {
    CHECK_FALSE(recording());
    const Tensor y = x * x;
    CHECK_FALSE(y.requires_grad());
    Tape own;
    const Tensor z = x * 3.0;
    CHECK(own.size() == 1);
  }).join();
  CHECK(tape.size() == 0);
}

TEST_CASE("tape: the upstream gradient is borrowed, never added into") {
  const Tensor x = leaf({1, 2}), up = from({10.0, 20.0});
  Tape tape;
  const Tensor y = x + x;  // passes its gradient on twice
  const Tensor z = y + 0.0;
  tape.backward(z, {.upstream = up});
  CHECK(values(up) == Values{10, 20});
  CHECK(values(x.grad()) == Values{20, 40});
}

TEST_CASE("tape: a gradient that is handed on is copied before anything is added") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4});
  Tape tape;
  const Tensor a = x * 1.0, b = y * 1.0;
  const Tensor s = a + b;        // one buffer passed to both
  const Tensor t = s + a * 2.0;  // a gets more
  tape.backward(t, {.upstream = from({1.0, 10.0})});
  CHECK(values(x.grad()) == Values{3, 30});
  CHECK(values(y.grad()) == Values{1, 10});
}

TEST_CASE("tape: in-place changes of recorded tensors need NoGrad") {
  const Tensor x = leaf({1, 2});
  x.add_(from({1.0, 1.0}));  // no tape records: a plain update
  CHECK(values(x) == Values{2, 3});
  Tape tape;
  expect_error([&] { x.add_(from({1.0, 1.0})); }, "add_", "parameter", "NoGrad");
  const Tensor y = x + 1.0;
  expect_error([&] { y.mul_(2.0); }, "mul_", "recorded", "NoGrad");
  {
    const NoGrad pause;
    y.mul_(2.0);
    x.add_(from({1.0, 1.0}));
  }
  tape.backward(sum(y));
  CHECK(values(x.grad()) == Values{1, 1});
}

TEST_CASE("tape: a saved tensor that was changed in place is an error that names both places") {
  const Tensor x = leaf({1, 2});
  Tape tape;
  const Tensor y = exp(x);
  {
    const NoGrad pause;
    y.add_(from({1.0, 1.0}));
  }
  expect_error([&] { tape.backward(sum(y)); }, "exp", "saved for backward", "add_");
}

TEST_CASE("tape: a change through a view or a detached handle is seen, too") {
  const Tensor x = leaf({1, 2, 3});
  Tape tape;
  const Tensor y = exp(x);
  y.detach()(slice(0, 1)).fill_(0);
  expect_error([&] { tape.backward(sum(y)); }, "exp", "fill_");
}

TEST_CASE("tape: a saved output holds storage, not its knot") {
  const std::size_t before = memory_stats().current;
  {
    const Tensor x = rand({64}, f64);
    x.set_requires_grad();
    Tape tape;
    const Tensor y = exp(exp(x));
  }
  CHECK(memory_stats().current == before);
}

TEST_CASE("tape: an exception in backward spends the tape and marks gradients as partial") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4});
  {
    Tape tape;
    const Tensor a = apply(Fails{}, x);
    const Tensor b = sum(a * y);
    expect_error([&] { tape.backward(b); }, "on purpose");
    CHECK(y.grad_is_partial());
    CHECK_FALSE(x.grad_is_partial());
    CHECK(tape.size() == 0);
    expect_error([&] { tape.backward(b); }, "backward", "spent", "fails");
    expect_error([&] { y * 2.0; }, "mul", "spent");
  }
  y.zero_grad();
  CHECK_FALSE(y.grad_is_partial());
  Tape tape;
  tape.backward(sum(x * y));
  CHECK(values(y.grad()) == Values{1, 2});
}

TEST_CASE("tape: gradients() returns and stores nothing, for leaves and for what lies between") {
  const Tensor x = leaf({1, 2}), unused = leaf({5, 5});
  Tape tape;
  const Tensor y = x * x;
  const Tensor loss = sum(y * 3.0);
  const auto g = tape.gradients(loss, {y, x, unused}, {.retain = true});
  CHECK(values(g[0]) == Values{3, 3});
  CHECK(values(g[1]) == Values{6, 12});
  CHECK(values(g[2]) == Values{0, 0});
  CHECK_FALSE(x.grad().defined());
  expect_error([&] { tape.gradients(loss, {from({1.0})}); }, "gradients", "tensor 0");
}

TEST_CASE("tape: gradients() does not compute what nobody asked for") {
  const Tensor x = leaf({1}), y = leaf({2});
  int calls = 0;
  Tape tape;
  const Tensor loss = apply(Counts{&calls}, x) * y;
  CHECK(values(tape.gradients(loss, {y})[0]) == Values{1});
  CHECK(calls == 0);
}

TEST_CASE("tape: second derivatives are a clear error") {
  const Tensor x = leaf({2});
  Tape tape;
  const Tensor y = x * x * x;
  const Tensor g = tape.gradients(y, {x}, {.retain = true})[0];
  expect_error([&] { g* x; }, "mul", "second derivatives are not supported", "detach()");
  expect_error([&] { tape.backward(g); }, "second derivatives");
  CHECK(values(g.detach() * 2.0) == Values{24});
}

TEST_CASE("tape: printing shows one row a knot") {
  const Tensor x = rand({4, 8}, f32), w = rand({8, 2}, f32);
  w.set_requires_grad();
  Tape tape;
  {
    const MemoryScope scope("layer1");
    tanh(matmul(x, w));
  }
  const std::string text = tape.text();
  CAPTURE(text);
  for (const char* part :
       {"matmul", "tanh", "f32(4, 2)", "layer1", "saved", "workspace", "2 knots"}) {
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("tape: a user's operator in one struct") {
  const Tensor x = leaf({1, 2, 3});
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return apply(Cube{}, in[0]); }, {x}));
  CHECK(values(apply(Cube{}, x)) == Values{1, 8, 27});
  Tape tape;
  apply(Cube{}, x);
  CHECK(tape.size() == 1);
  CHECK(tape.saved_bytes() == 3 * 8);
}
