// recompute and anomaly mode.
#include <doctest/doctest.h>

#include <cmath>

#include "quipu/quipu.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

struct Layers {
  std::vector<Tensor> weights;
  explicit Layers(int count, std::int64_t width) {
    Generator g(7);
    for (int i = 0; i < count; ++i) {
      weights.push_back(randn({width, width}, f64, cpu, g) * 0.2);
      weights.back().set_requires_grad();
    }
  }
  Tensor layer(std::size_t i, const Tensor& x) const {
    return tanh(exp(tanh(matmul(x, weights[i]))));
  }
};

Tensor run(const Layers& net, Tensor x, bool again) {
  for (std::size_t i = 0; i < net.weights.size(); ++i) {
    const auto f = [&net, i](const std::vector<Tensor>& in) { return net.layer(i, in[0]); };
    x = again ? recompute(f, {x}) : f({x});
  }
  return x;
}

}  // namespace

TEST_CASE("recompute: same gradients to the bit, less memory") {
  const Layers net(6, 32);
  const Tensor x = randn({16, 32}, f64);
  std::vector<std::vector<Tensor>> grads;
  std::vector<std::size_t> held;
  for (const bool again : {false, true}) {
    Tape tape;
    const Tensor loss = sum(run(net, x, again));
    held.push_back(memory_stats().by_category[static_cast<std::size_t>(Category::saved)]);
    tape.backward(loss);
    grads.emplace_back();
    for (const Tensor& w : net.weights) {
      grads.back().push_back(w.grad());
      w.zero_grad();
    }
  }
  for (std::size_t i = 0; i < net.weights.size(); ++i) CHECK(same_bits(grads[0][i], grads[1][i]));
  CHECK(held[1] * 3 <= held[0]);
}

TEST_CASE("recompute: gradients reach inputs, captured leaves, or both") {
  const Tensor x = from({1.0, 2.0}), w = from({3.0, 4.0});
  x.set_requires_grad();
  w.set_requires_grad();
  const auto f = [&](const std::vector<Tensor>& in) { return in[0] * in[0] * w; };
  {
    Tape tape;
    tape.backward(sum(recompute(f, {x * 1.0})));
    CHECK(x.grad().to_vector() == std::vector<double>{6, 16});
    CHECK(w.grad().to_vector() == std::vector<double>{1, 4});
  }
  w.zero_grad();
  {
    Tape tape;  // only the captured leaf wants a gradient
    tape.backward(sum(recompute(f, {from({5.0, 6.0})})));
    CHECK(w.grad().to_vector() == std::vector<double>{25, 36});
  }
  Tape tape;  // asked for by name, nothing is stored
  const Tensor loss = sum(recompute(f, {x}));
  const Tensor before = w.grad().clone();
  CHECK(tape.gradients(loss, {w})[0].to_vector() == std::vector<double>{1, 4});
  CHECK(same_bits(w.grad(), before));
}

TEST_CASE("recompute: random numbers drawn inside come out the same") {
  const Tensor x = ones({64}, f64);
  x.set_requires_grad();
  manual_seed(3);
  Tape tape;
  const Tensor y =
      recompute([](const std::vector<Tensor>& in) { return dropout(in[0], 0.5); }, {x});
  const Tensor after = rand({4});
  tape.backward(sum(y));
  CHECK(same_bits(x.grad(), y.detach()));  // both are the mask times 2
  const PhiloxState state = default_generator().state();
  CHECK(rand({4}).to_vector() != after.to_vector());
  CHECK(default_generator().state().offset > state.offset);
}

TEST_CASE("recompute: random numbers of any generator come out the same") {
  const Tensor x = ones({64}, f64).set_requires_grad();
  Generator mine(5);
  const auto f = [&](const std::vector<Tensor>& in) {
    Generator inside(9);
    return dropout(dropout(in[0], 0.5, mine), 0.25, inside) * dropout(in[0].detach(), 0.5);
  };
  const auto nested = [&](const std::vector<Tensor>& in) {
    return recompute(f, {dropout(in[0], 0.125, mine)});
  };
  for (const bool deep : {false, true}) {
    x.zero_grad();
    Tape tape;
    const Tensor y = deep ? recompute(nested, {x}) : recompute(f, {x});
    const PhiloxState state = mine.state(), common = default_generator().state();
    tape.backward(sum(y));
    CHECK(same_bits(x.grad(), y.detach()));  // both are the product of the masks
    CHECK(mine.state() == state);            // backward draws nothing new
    CHECK(default_generator().state() == common);
  }
}

TEST_CASE("recompute: gradients reach recorded tensors that f captures or returns") {
  const Tensor x = from({1.0, 2.0}).set_requires_grad(), w = from({3.0, 4.0}).set_requires_grad();
  const auto grads_with = [&](bool again) {
    Tape tape;
    const Tensor h = w * w, k = x + 1.0;
    const auto inner = [&](const std::vector<Tensor>& in) { return in[0] * h; };
    const auto f = [&](const std::vector<Tensor>& in) {
      const Tensor a = exp(in[0]);
      return (again ? recompute(inner, {a}) : inner({a})) + a * k;
    };
    const auto g = [&](const std::vector<Tensor>&) { return h; };
    const Tensor y = again ? recompute(f, {x}) : f({x}), z = again ? recompute(g, {x}) : g({x});
    return tape.gradients(sum(y * z + h), {x, w, h, k});
  };
  const std::vector<Tensor> plain = grads_with(false), again = grads_with(true);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(i);
    CHECK(compare(plain[i].detach(), again[i].detach(), {.relative = 1e-14, .absolute = 0}));
  }
}

TEST_CASE("recompute: nested, an input of the inner one that nobody reads") {
  const Tensor x = from({2.0}).set_requires_grad();
  Tape tape;
  const Tensor t = x.flatten(), c = from({1.0});
  for (const Tensor& unread : {t, c}) {
    x.zero_grad();
    const Tensor y = recompute(
        [=](const std::vector<Tensor>& in) {
          const Tensor& p = in[0];
          return recompute([p](const std::vector<Tensor>&) { return p * 2; }, {unread});
        },
        {x});
    tape.backward(y);
    CHECK(x.grad().to_vector() == std::vector<double>{2});
  }
}

TEST_CASE("recompute: nested to any depth, the innermost returns what an outer tape recorded") {
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  const Tensor x = from({2.0, 3.0}).set_requires_grad(), w = from({5.0, 7.0}).set_requires_grad();
  for (const int depth : {1, 2, 3, 4}) {
    CAPTURE(depth);
    Tape tape;
    const Tensor h = w * w;
    Function f = [h](const std::vector<Tensor>&) { return h; };
    for (int i = 0; i < depth; ++i) {
      f = [f](const std::vector<Tensor>& in) { return recompute(f, in); };
    }
    const Function drops = [f](const std::vector<Tensor>& in) {
      f(in);  // nobody reads it
      return in[0] * 3;
    };
    const Tensor loss = sum(f({x}) * x * 2 + recompute(drops, {x}));
    const std::vector<Tensor> grads = tape.gradients(loss, {x, w, h});
    CHECK(grads[0].to_vector() == std::vector<double>{53, 101});
    CHECK(grads[1].to_vector() == std::vector<double>{40, 84});
    CHECK(grads[2].to_vector() == std::vector<double>{4, 6});
  }
}

TEST_CASE("recompute: a hook of a captured tensor sees its whole gradient, once") {
  const Tensor x = from({2.0}).set_requires_grad();
  std::vector<double> seen;
  Tape tape;
  const Tensor t = x * 2.0;
  t.add_hook([&](const Tensor& g) {
    seen.push_back(g.item());
    return g;
  });
  const Tensor u = x + t;
  tape.backward(recompute([=](const std::vector<Tensor>&) { return t + u; }, {x}));
  CHECK(seen == std::vector<double>{2});
  CHECK(x.grad().to_vector() == std::vector<double>{5});
}

TEST_CASE("recompute: what f captures and is changed before backward is an error") {
  const Tensor x = from({1.0, 2.0}).set_requires_grad(), w = from({3.0, 4.0}).set_requires_grad();
  const Tensor constant = from({5.0, 6.0});
  for (const Tensor& captured : {w, constant}) {
    Tape tape;
    const Tensor y =
        recompute([&](const std::vector<Tensor>& in) { return in[0] * captured; }, {x});
    {
      const NoGrad pause;
      captured.mul_(2);
    }
    expect_error([&] { tape.backward(sum(y)); }, "recompute", "changed in place by mul_",
                 "clone()");
  }
  Tape tape;  // a loop variable that is captured by reference is another one by then
  const std::vector<Tensor> layers = {from({1.0, 1.0}), from({2.0, 2.0})};
  std::size_t i = 0;
  const Tensor y = recompute([&](const std::vector<Tensor>& in) { return in[0] * layers[i]; }, {x});
  ++i;
  expect_error([&] { tape.backward(sum(y)); }, "recompute", "did not read in forward", "by value");
}

TEST_CASE("recompute: a tape, a hook and an error inside f are as they are outside it") {
  const Tensor x = from({1.0, 2.0}).set_requires_grad();
  {
    Tape tape;
    const Tensor y = recompute(
        [](const std::vector<Tensor>& in) {
          const Tensor v = in[0].detach().set_requires_grad();
          {
            Tape inner;
            inner.backward(sum(v * v * v));
          }
          return in[0] * v.grad();
        },
        {x});
    tape.backward(sum(y));
    CHECK(x.grad().to_vector() == std::vector<double>{3, 12});
  }
  x.zero_grad();
  {
    Tape tape;
    int calls = 0;
    const Tensor y = recompute(
        [&](const std::vector<Tensor>& in) {
          const Tensor h = in[0] * 2.0;
          for (const Tensor& t : {h, in[0]}) {
            t.add_hook([&](const Tensor& g) {
              ++calls;
              return g * 10.0;
            });
          }
          return h;
        },
        {x});
    tape.backward(sum(y + x));
    CHECK(calls == 2);
    CHECK(x.grad().to_vector() == std::vector<double>{201, 201});
  }
  Tape tape;
  const auto changes = [](const std::vector<Tensor>& in) { return (in[0] * 2.0).add_(1); };
  expect_error([&] { recompute(changes, {x}); }, "add_", "in place", "NoGrad");
  const Tensor y = recompute([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {x});
  CHECK_NOTHROW(tape.backward(sum(y)));  // the tape is none the worse
}

TEST_CASE("recompute: nested, and without a tape") {
  const Tensor x = from({0.5, 0.25});
  x.set_requires_grad();
  const auto inner = [](const std::vector<Tensor>& in) { return exp(in[0]) * in[0]; };
  const auto outer = [&](const std::vector<Tensor>& in) {
    return recompute(inner, {in[0] * 2.0}) * in[0];
  };
  const auto plain = [&](const std::vector<Tensor>& in) { return inner({in[0] * 2.0}) * in[0]; };
  CHECK(same_bits(recompute(outer, {x}), plain({x})));
  Tape tape;
  const auto a = tape.gradients(sum(recompute(outer, {x})), {x});
  const auto b = tape.gradients(sum(plain({x})), {x});
  CHECK(same_bits(a[0], b[0]));
  CHECK(gradcheck([&](const std::vector<Tensor>& in) { return recompute(outer, in); }, {x}));
}

TEST_CASE("recompute: a function that changes its mind is an error") {
  const Tensor x = from({1.0, 2.0});
  x.set_requires_grad();
  int calls = 0;
  Tape tape;
  const Tensor y = recompute(
      [&](const std::vector<Tensor>& in) {
        return calls++ ? in[0](slice(0, 1)) * 1.0 : in[0] * 1.0;
      },
      {x});
  expect_error([&] { tape.backward(sum(y)); }, "recompute", "(2,)", "(1,)");
}

TEST_CASE("anomaly: the first NaN in forward names operator, scope and tensor") {
  const AnomalyMode anomaly;
  const MemoryScope scope("block7");
  const Tensor x = from({1.0, -1.0, 2.0});
  expect_error([&] { log(x); }, "log", "output 0", "(3,)", "element 1", "block7");
  expect_error([&] { from({1.0, 2.0}) / from({1.0, 0.0}); }, "div", "element 1");
}

TEST_CASE("anomaly: the first NaN in backward names operator, scope and tensor") {
  const Tensor x = from({1.0, 0.0});
  x.set_requires_grad();
  {
    Tape tape;  // off: the infinity goes through
    tape.backward(sum(sqrt(x)));
    CHECK(std::isinf(x.grad().to_vector()[1]));
  }
  x.zero_grad();
  const AnomalyMode anomaly;
  Tape tape;
  Tensor y;
  {
    const MemoryScope scope("block7");
    y = sqrt(x);
  }
  expect_error([&] { tape.backward(sum(y)); }, "sqrt backward", "gradient of input 0", "element 1",
               "block7");
  CHECK(x.grad_is_partial());
}
