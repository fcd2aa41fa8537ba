// Who may write a gradient that a hook, a custom rule, the user or an earlier walk holds, too.
#include <doctest/doctest.h>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/quipu.h"
#include "support/leaves.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

TEST_CASE("ownership: what a hook keeps stays as it was") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4});
  std::vector<Tensor> kept;
  const Hook keep = [&](const Tensor& g) {
    kept.push_back(g);
    return Tensor();
  };
  Tape tape;
  const Tensor a = x * 1.0, b = y * 1.0, m = a * 2.0, s = a + b;
  s.add_hook(keep);
  b.add_hook(keep);
  x.add_hook(keep);
  tape.backward(sum(s + m), {.retain = true});
  tape.backward(sum(s + m));
  REQUIRE(kept.size() == 6);
  for (const int i : {0, 1, 3, 4}) CHECK(values(kept[static_cast<std::size_t>(i)]) == Values{1, 1});
  for (const int i : {2, 5}) CHECK(values(kept[static_cast<std::size_t>(i)]) == Values{3, 3});
  CHECK(values(x.grad()) == Values{6, 6});
  CHECK(values(y.grad()) == Values{2, 2});
}

TEST_CASE("ownership: a leaf's gradient is not the tensor that its hook returned") {
  const Tensor x = leaf({1, 2}), mine = from({5.0, 7.0});
  x.add_hook([&](const Tensor&) { return mine; });
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.backward(sum(x * 3.0));
  }
  CHECK(values(mine) == Values{5, 7});
  CHECK(values(x.grad()) == Values{10, 14});
}

TEST_CASE("ownership: a hook may return an expanded tensor") {
  const Tensor x = leaf({1, 2});
  x.add_hook([](const Tensor& g) { return sum(g).expand({2}); });
  const auto walk = [&](double a, double b) {
    Tape tape;
    tape.backward(x * 1.0, {.upstream = from({a, b})});
  };
  walk(1, 2);
  walk(3, 4);
  CHECK(values(x.grad()) == Values{10, 10});
  x.grad()(slice(0, 1)).fill_(0);  // each element has its own place
  CHECK(values(x.grad()) == Values{0, 10});
}

TEST_CASE("ownership: a hook may change its gradient in place; nobody else sees it") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4}), upstream = from({1.0, 10.0});
  Tape tape;
  const Tensor a = x * 1.0, b = y * 1.0, s = a + b;
  a.add_hook([](const Tensor& g) {
    g.mul_(2);
    return Tensor();
  });
  a.add_hook([](const Tensor& g) { return g.add_(1); });
  tape.backward(s, {.upstream = upstream});
  CHECK(values(x.grad()) == Values{3, 21});
  CHECK(values(y.grad()) == Values{1, 10});
  CHECK(values(upstream) == Values{1, 10});
}

namespace {

struct ChangesItsGradient {
  static constexpr const char* name = "changes_its_gradient";
  Tensor forward(const Tensor& x) { return x * 1.0; }
  void backward(const Tensor& d_o, Grads& d) const {
    d_o.mul_(2);
    d.pass(0, d_o);
  }
};

/// Passes its gradient on and keeps it, or a tensor of its own.
struct Passes {
  static constexpr const char* name = "passes";
  Tensor* kept;
  Tensor own;
  Tensor forward(const Tensor& x) { return x * 1.0; }
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor g = own.defined() ? own : d_o;
    *kept = g;
    d.pass(0, g);
  }
};

}  // namespace

TEST_CASE("ownership: a custom rule that changes its gradient in place is an error") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4}), upstream = from({1.0, 10.0});
  {
    Tape tape;
    const Tensor s = apply(ChangesItsGradient{}, x) + y;
    expect_error([&] { tape.backward(s, {.upstream = upstream}); }, "mul_", "in place", "clone()");
  }
  CHECK(values(upstream) == Values{1, 10});
  x.zero_grad();
  Tape tape;  // everything works again
  tape.backward(x * 1.0, {.upstream = upstream});
  CHECK(values(x.grad()) == Values{1, 10});
  upstream.mul_(2);
  CHECK(values(upstream) == Values{2, 20});
}

TEST_CASE("ownership: what a custom rule passes on and keeps stays as it was") {
  for (const bool of_its_own : {false, true}) {
    const Tensor x = leaf({1, 2});
    Tensor kept;
    Tape tape;
    const Tensor a = x * 1.0, m = a * 2.0;
    const Tensor p = apply(Passes{&kept, of_its_own ? from({5.0, 6.0}) : Tensor()}, a);
    tape.backward(sum(p + m));
    const double first = of_its_own ? 5 : 1, second = of_its_own ? 6 : 1;
    CHECK(values(kept) == Values{first, second});
    CHECK(values(x.grad()) == Values{first + 2, second + 2});
  }
}

TEST_CASE("ownership: set_grad takes a copy") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4}), g = from({10.0, 20.0});
  x.set_grad(g);
  y.set_grad(g);
  Tape tape;
  tape.backward(sum(x * 2.0 + y * 3.0));
  CHECK(values(g) == Values{10, 20});
  CHECK(values(x.grad()) == Values{12, 22});
  CHECK(values(y.grad()) == Values{13, 23});
  const void* where = x.grad().raw_data();
  x.set_grad(x.grad());
  CHECK(x.grad().raw_data() == where);
}

TEST_CASE("ownership: results of gradients() share no memory") {
  const Tensor x = leaf({1, 2}), y = leaf({3, 4}), upstream = from({1.0, 10.0});
  Tape tape;
  const Tensor a = x * 1.0, b = y.reshape({1, 2}), s = a + b.reshape({2});
  const std::vector<Tensor> g = tape.gradients(s, {s, a, b, a, x, x, y}, {.upstream = upstream});
  for (const Tensor& d : g) CHECK(values(d) == Values{1, 10});
  for (const Tensor& d : g) {
    d.detach().mul_(2);
    CHECK(values(d) == Values{2, 20});  // changed once, by itself
  }
  CHECK(values(upstream) == Values{1, 10});
}

TEST_CASE("ownership: a leaf's gradient may be a constant of the next loss") {
  const auto grad_of_first_walk = [] {
    const Tensor w = leaf({3, 4});
    Tape tape;
    tape.backward(sum(w * w) * 0.5);
    return w;  // w.grad() is 3 4
  };
  SUBCASE("saved by an operator that runs behind the addition") {
    const Tensor w = grad_of_first_walk();
    Tape tape;
    const Tensor early = w * 1.0 * w.grad();  // undone last: reads what it saved
    tape.backward(sum(early + w));
    CHECK(values(w.grad()) == Values{3 + 3 + 1, 4 + 4 + 1});
  }
  SUBCASE("read and written by one kernel") {
    const Tensor w = leaf({1, 2, 3, 4}, {2, 2});
    w.set_grad(from({1.0, 2.0, 3.0, 4.0}, {2, 2}));
    Tape tape;
    tape.backward(sum(matmul(w, w.grad())));
    CHECK(values(w.grad()) == Values{1 + 3, 2 + 7, 3 + 3, 4 + 7});
  }
  SUBCASE("as the upstream") {
    const Tensor w = grad_of_first_walk();
    Tape tape;
    const Tensor a = w * 1.0, y = a + w;
    tape.backward(y, {.upstream = w.grad()});
    CHECK(values(w.grad()) == Values{9, 12});
  }
  SUBCASE("as the upstream of the leaf itself, transposed") {
    const Tensor w = leaf({1, 2, 3, 4}, {2, 2});
    w.set_grad(from({1.0, 2.0, 3.0, 4.0}, {2, 2}));
    Tape tape;
    tape.backward(w, {.upstream = w.grad().t()});
    CHECK(values(w.grad()) == Values{2, 5, 5, 8});
  }
  SUBCASE("returned by a hook") {
    const Tensor w = grad_of_first_walk();
    Tape tape;
    const Tensor a = w * 1.0, v = w.view({1, 2});
    a.add_hook([&](const Tensor&) { return w.grad(); });
    tape.backward(sum(a + v[0]));  // when the hook runs, 1 1 was added to 3 4
    CHECK(values(w.grad()) == Values{8, 10});
  }
}

TEST_CASE("ownership: a change in place of a gradient that was saved is seen") {
  const Tensor w = leaf({3, 4}), v = leaf({1, 1});
  w.set_grad(from({5.0, 6.0}));
  Tape tape;
  const Tensor loss = sum(v * w.grad());
  w.grad().mul_(2);
  expect_error([&] { tape.backward(loss); }, "mul", "changed in place", "clone()");
}

namespace {

/// One gradient by operator[], the other in one of the finished ways.
struct Mixes {
  static constexpr const char* name = "mixes";
  int way;
  bool write_last;
  Saved a = {}, b = {};
  Tensor forward(const Tensor& x, const Tensor& y) {
    a = save(x);
    b = save(y);
    return x * y;
  }
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor first = d_o * b.get(), second = d_o * a.get();
    if (!write_last) {
      add_into_kernel(d[0], first);
      return other(second, d);
    }
    const Grad out = d[0];
    other(second, d);
    if (out.wanted()) add_into_kernel(out, first);
  }
  void other(const Tensor& t, Grads& d) const {
    if (way == 0) d.add(1, t);
    if (way == 1) d.pass(1, t);
    if (way == 2) d.with(1, [&](const Grad& g) { add_into_kernel(g, t); });
    if (way == 3) add_into_kernel(d[1], t);
    if (way == 4) d.give(1, t.clone());
  }
};

}  // namespace

TEST_CASE("ownership: a rule may mix all ways of leaving gradients, of one tensor, too") {
  for (int way = 0; way < 5; ++way) {
    for (const bool last : {false, true}) {
      CAPTURE(way);
      CAPTURE(last);
      const Tensor x = leaf({3, 4});
      {
        Tape tape;
        tape.backward(sum(apply(Mixes{way, last}, x, x)));
        CHECK(values(x.grad()) == Values{6, 8});
      }
      x.zero_grad();
      Tape tape;
      const Tensor a = x * 1.0;
      tape.backward(sum(apply(Mixes{way, last}, a, a) + a));
      CHECK(values(x.grad()) == Values{7, 9});
    }
  }
}

namespace {

struct ReturnsConstant {
  static constexpr const char* name = "returns_constant";
  Tensor forward(const Tensor&, const Tensor& c) { return c; }
  void backward(const Tensor& d_o, Grads& d) const { d.add(0, d_o); }
};

}  // namespace

TEST_CASE("ownership: a custom forward that returns an input leaves that as it was") {
  const Tensor x = leaf({1, 2}), c = from({5.0, 5.0});
  Tape tape;
  const Tensor y = apply(ReturnsConstant{}, x, c);
  CHECK(!c.requires_grad());
  tape.backward(sum(y + c * 5.0));
  CHECK(values(x.grad()) == Values{1, 1});
}
