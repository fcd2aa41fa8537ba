// gradcheck passes right gradients, and catches each kind of wrong one: every control here is
// broken on purpose.
#include "quipu/autograd/gradcheck/gradcheck.h"

#include <cmath>
#include <limits>

#include "quipu/autograd/custom.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/devices.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/index/top_k.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/unary.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

using In = const std::vector<Tensor>&;

Tensor leaf(const Tensor& x) {
  return x.to(f64).detach().set_requires_grad();
}

/// Different values in [0.5, 1.5), none of them 1.
Tensor ramp(const Shape& shape, Device device) {
  const std::int64_t n = numel(shape);
  return leaf(linspace(0.501, 1.487, n, f64, device).reshape(shape));
}

using Rule = std::function<void(const Tensor& d_o, const Tensor& x, Grads& d)>;

/// x^3 with a backward rule of the test's choice.
struct Cube {
  static constexpr const char* name = "cube";
  Rule rule;
  Saved x;
  Tensor forward(const Tensor& in) {
    x = save(in);
    return in * in * in;
  }
  void backward(const Tensor& d_o, Grads& d) const { rule(d_o, x, d); }
};
DifferentiableFunction cube(const Rule& rule) {
  return [rule](In in) { return apply(Cube{rule, {}}, in[0]); };
}
void right_rule(const Tensor& d_o, const Tensor& x, Grads& d) {
  d.add(0, 3 * d_o * x * x);
}

/// Adds a row to every row of x, and forgets in backward that it did so more than once.
struct AddRow {
  static constexpr const char* name = "add_row";
  Tensor forward(const Tensor& x, const Tensor& row) { return x + row; }
  void backward(const Tensor& d_o, Grads& d) const {
    d.add(0, d_o);
    d.add(1, d_o[0]);
  }
};

/// 2 x, with a rule that works in the memory of its upstream, as if nobody else needed it.
struct Doubles {
  static constexpr const char* name = "doubles";
  Tensor forward(const Tensor& x) { return x * 2.0; }
  void backward(const Tensor& d_o, Grads& d) const {
    add_into_kernel(Grad::add_to(d_o), d_o);
    d.pass(0, d_o);
  }
};

/// The right gradient with one entry multiplied by `factor`.
Rule spoiled_at(std::int64_t position, double factor) {
  return [=](const Tensor& d_o, const Tensor& x, Grads& d) {
    const Tensor gradient = 3 * d_o * x * x;
    gradient.flatten().select(0, position).mul_(factor);
    d.add(0, gradient);
  };
}

void check_names(const GradcheckResult& result, int input, const Dims& index, const char* text) {
  INFO(result.report);
  CHECK(!result.ok);
  CHECK(result.input == input);
  CHECK(result.index == index);
  CHECK(result.report.find(text) != std::string::npos);
}
void check_says(const GradcheckResult& result, const char* text) {
  INFO(result.report);
  CHECK(!result.ok);
  CHECK(result.report.find(text) != std::string::npos);
}

/// Entries of a Jacobian that are all checked: none where f takes long.
std::int64_t whole_jacobian(std::int64_t entries, Device device) {
  return is_emulated(device) ? 0 : entries;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "gradcheck: passes right gradients and counts what it checked") {
  const auto small = gradcheck(cube(right_rule), {ramp({5, 7}, device)});
  CHECK_MESSAGE(small.ok, small.report);
  CHECK(small.entries == whole_jacobian(35 * 35, device));
  CHECK(small.directions == (is_emulated(device) ? 2 : 0));
  CHECK(small.worst_error < 1e-10);
  const char* const amount = is_emulated(device) ? "2 random directions" : "1225 Jacobian entries";
  CHECK(small.report.find(amount) != std::string::npos);

  const auto large = gradcheck(cube(right_rule), {ramp({50, 70}, device)});
  CHECK_MESSAGE(large.ok, large.report);
  CHECK(large.entries == 0);
  CHECK(large.directions == (is_emulated(device) ? 2 : 4));
  CHECK(large.worst_error < 1e-9);

  const auto two = gradcheck([](In in) { return in[0] * exp(in[1]); },
                             {ramp({3}, device), ramp({5, 3}, device)});
  CHECK_MESSAGE(two.ok, two.report);
  CHECK(two.entries == whole_jacobian(3 * 15 + 15 * 15, device));
}

TEST_CASE_FIXTURE(EachDevice,
                  "gradcheck: checks those inputs that require a gradient, and leaves them alone") {
  const Tensor a = ramp({5}, device), b = ramp({5}, device).detach(),
               whole = arange(5, i64, device);
  const Tensor before = a.detach().clone();
  const auto result = gradcheck([](In in) { return in[0] * in[1] + in[2].to(f64); }, {a, b, whole});
  CHECK_MESSAGE(result.ok, result.report);
  CHECK(result.entries == whole_jacobian(25, device));
  CHECK(!a.grad().defined());
  CHECK(same_bits(a.detach(), before));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: f may ignore inputs, return one, or be constant") {
  const Tensor a = ramp({3}, device), b = ramp({4}, device);
  CHECK(gradcheck([](In in) { return exp(in[1]); }, {a, b}));
  CHECK(gradcheck([](In in) { return in[0]; }, {a}));
  CHECK(gradcheck([&](In) { return ones({2}, f64, device); }, {a}));
  // Cut off from its input, but not constant: the gradient 0 is wrong.
  check_names(gradcheck([](In in) { return exp(in[0].detach()); }, {a}), 0, {2}, "analytic 0");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: nothing in, nothing out, no dimensions") {
  CHECK(gradcheck([](In in) { return exp(in[0]); }, {ramp({3, 0}, device)}).entries == 0);
  CHECK(gradcheck([](In in) { return exp(in[0]); }, {ramp({3, 0}, device)}));
  CHECK(gradcheck([](In in) { return exp(in[0].slice(0, 1, 1)); }, {ramp({3}, device)}));
  CHECK(gradcheck([](In in) { return sum(in[0]); }, {ramp({3, 0}, device)}));
  CHECK(gradcheck([](In in) { return exp(in[0]); }, {ramp({}, device)}).entries ==
        whole_jacobian(1, device));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: f sees the strides of its inputs") {
  const Tensor x = leaf(ramp({4, 6}, device).detach().t().slice(0, 1, {}, 2));
  const Strides wanted = x.strides();
  const auto result = gradcheck(
      [&](In in) {
        CHECK(in[0].strides() == wanted);
        return exp(in[0]);
      },
      {x});
  CHECK_MESSAGE(result.ok, result.report);
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a wrong sign and a factor of 1 + 1e-6") {
  const Tensor x = ramp({5, 7}, device);
  const auto scaled = [](double factor) -> Rule {
    return
        [=](const Tensor& d_o, const Tensor& x, Grads& d) { d.add(0, factor * 3 * d_o * x * x); };
  };
  // The largest entry of the ramp is the last.
  check_names(gradcheck(cube(scaled(-1)), {x}), 0, {4, 6}, "gradcheck failed: input 0 [4, 6]");
  check_names(gradcheck(cube(scaled(1 + 1e-6)), {x}), 0, {4, 6},
              "gradcheck failed: input 0 [4, 6]");
  CHECK(!gradcheck(cube(scaled(1 + 1e-6)), {ramp({50, 70}, device)}));
  CHECK(gradcheck(cube(scaled(1 + 1e-9)), {x}));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: names the one wrong entry, among few and among many") {
  const auto few = gradcheck(cube(spoiled_at(16, 1.01)), {ramp({5, 7}, device)});
  check_names(few, 0, {2, 2}, "input 0 [2, 2]");
  CHECK(few.analytic / few.numeric == doctest::Approx(1.01));

  const auto many = gradcheck(cube(spoiled_at(12345, 1.01)), {ramp({150, 100}, device)});
  check_names(many, 0, {123, 45}, "input 0 [123, 45]");
  CHECK(many.analytic / many.numeric == doctest::Approx(1.01));
  CHECK(many.estimated < 1e-7);
}

TEST_CASE_FIXTURE(EachDevice,
                  "gradcheck: names the input, however small its gradient beside another's") {
  const auto spoiled = [](In in) {
    return 1e3 * in[0] + apply(Cube{spoiled_at(1, 1 + 1e-5), {}}, in[1]);
  };
  check_names(gradcheck(spoiled, {ramp({3}, device), ramp({3}, device)}), 1, {1}, "input 1 [1]");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a broadcast that is not summed") {
  const auto result = gradcheck([](In in) { return apply(AddRow{}, in[0], in[1]); },
                                {ramp({3, 5}, device), ramp({5}, device)});
  INFO(result.report);
  CHECK(!result.ok);
  CHECK(result.input == 1);
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a NaN in a gradient") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto only_upstream_nan = [=](const Tensor& d_o, const Tensor& x, Grads& d) {
    // Right for a zero upstream, so that the differences have to find it.
    const Tensor gradient = 3 * d_o * x * x;
    const Tensor entry = gradient.flatten().select(0, 3);
    if (entry.item() != 0) entry.fill_(nan);
    d.add(0, gradient);
  };
  check_names(gradcheck(cube(only_upstream_nan), {ramp({5}, device)}), 0, {3}, "nan");
  check_names(gradcheck(cube(only_upstream_nan), {ramp({5000}, device)}), 0, {3}, "nan");
  check_says(gradcheck(cube(spoiled_at(3, nan)), {ramp({5}, device)}), "zero upstream");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a backward that ignores its upstream") {
  const auto ignores = [](const Tensor&, const Tensor& x, Grads& d) { d.add(0, 3 * x * x); };
  check_says(gradcheck(cube(ignores), {ramp({5}, device)}), "a zero upstream gives");
  // One that only takes its sum gives zero for zero.
  const auto sums = [](const Tensor& d_o, const Tensor& x, Grads& d) {
    d.add(0, 3 * sum(d_o) * x * x);
  };
  CHECK(!gradcheck(cube(sums), {ramp({5}, device)}));
  CHECK(!gradcheck(cube(sums), {ramp({5000}, device)}));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a backward that overwrites what is there") {
  const auto overwrites = [](const Tensor& d_o, const Tensor& x, Grads& d) {
    d.with(0, [&](const Grad& g) { copy_kernel(g.view, 3 * d_o * x * x); });
  };
  check_says(gradcheck(cube(overwrites), {ramp({5}, device)}),
             "is not added to the one that was there");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches a gradient that leaks into that of another use") {
  const Tensor x = ramp({2, 3}, device), y = ramp({2, 3}, device);
  const auto f = [](In in) {
    const Tensor a = apply(Doubles{}, in[0]), b = in[1] * 1.0;
    return a + b;  // b is undone before a here, and behind it in another order
  };
  const GradcheckResult result = gradcheck(f, {x, y});
  CHECK(!result.ok);
  CHECK(result.report.find("several uses") != std::string::npos);
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: passes functions whose gradients share buffers") {
  const Tensor x = ramp({2, 3}, device), y = ramp({2, 3}, device);
  const Tensor w = ramp({2, 3}, device).detach();
  const auto f = [&](In in) {
    const Tensor a = in[0] * 1.0, b = in[1] * 1.0, m = a * 2.0, s = a + b;
    return (s + m) * w;
  };
  CHECK(gradcheck(f, {x, y}));
  const auto g = [&](In in) {
    const Tensor a = top_k(in[0], 3).values, b = a + a;
    return mean(a + b);
  };
  CHECK(gradcheck(g, {x}));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: a gradient of the wrong shape is an error") {
  const auto longer = [](const Tensor& d_o, const Tensor&, Grads& d) {
    d.add(0, ones({d_o.size(0) + 1}, f64, d_o.device()));
  };
  expect_error([&] { gradcheck(cube(longer), {ramp({5}, device)}); }, "cube", "(6,)", "(5,)");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches f that is not the same twice") {
  int calls = 0;
  const auto drifts = [&](In in) { return in[0] * in[0] + 1e-15 * ++calls; };
  check_says(gradcheck(drifts, {ramp({5}, device)}), "not deterministic");

  const auto random_backward = [&](const Tensor& d_o, const Tensor& x, Grads& d) {
    d.add(0, (3 + 1e-15 * ++calls) * d_o * x * x);
  };
  check_says(gradcheck(cube(random_backward), {ramp({5}, device)}),
             "two runs gave different gradients of input 0");

  const auto two_faced = [](In in) { return recording() ? in[0] * in[0] : in[0] * in[0] * in[0]; };
  check_says(gradcheck(two_faced, {ramp({5}, device)}), "with and without a tape");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: catches f that changes its input") {
  const Tensor b = ramp({5}, device).detach();
  const auto changes = [](In in) {
    const Tensor o = in[0] + in[1];
    in[1].add_(1);
    return o;
  };
  check_says(gradcheck(changes, {leaf(ramp({5}, device)), b}), "f changed input 1");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: refuses a kink at the input and within the step") {
  const auto kinked = [](In in) { return abs(in[0]); };
  for (const double x : {0.0, 1e-5, 2e-4, 1.0 / 3000, 5e-4, 9e-4, -3e-4}) {
    CAPTURE(x);
    const Tensor few = leaf(from({1.0, 0.7, x, -0.3}, f64, device));
    check_names(gradcheck(kinked, {few}), 0, {2}, "gradcheck refused input 0 [2]");
    const Tensor many = ramp({5000}, device);
    {
      const NoGrad no_grad;
      many.select(0, 1234).fill_(x);
    }
    check_names(gradcheck(kinked, {many}), 0, {1234}, "gradcheck refused input 0 [1234]");
  }
  CHECK(gradcheck(kinked, {leaf(from({1.0, 0.7, 2e-3, -0.3}, f64, device))}));
  CHECK(gradcheck(kinked, {leaf(from({1.0, 5e-4}, f64, device))}, {.step = 1e-4}));
}

TEST_CASE_FIXTURE(
    EachDevice,
    "gradcheck: refuses jumps, ties, corners of higher order and the edge of the domain") {
  const Tensor x = leaf(from({1.0, 2.0, 0.0}, f64, device));
  const auto jump = [](In in) { return where(in[0] > 0, in[0] + 1, in[0]); };
  check_names(gradcheck(jump, {x}), 0, {2}, "do not converge");
  const auto corner = [](In in) { return in[0] * abs(in[0]); };
  check_names(gradcheck(corner, {x}), 0, {2}, "do not converge");
  check_names(gradcheck([](In in) { return sqrt(in[0]); }, {x}), 0, {2}, "zero upstream");
  check_names(gradcheck([](In in) { return log(in[0] + 5e-4); }, {x}), 0, {2}, "do not converge");
  const auto tie =
      gradcheck([](In in) { return max(in[0]); }, {leaf(from({1.0, 2.0, 2.0}, f64, device))});
  check_says(tie, "do not converge");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: refuses a kink that the caller knows of") {
  GradcheckOptions options;
  options.kink_distance = [](int input, double x) { return input == 1 ? std::abs(x - 1) : 10; };
  const auto f = [](In in) { return in[0] * in[1]; };
  const Tensor a = leaf(from({1.0, 2.0}, f64, device)), b = leaf(from({2.0, 1.0005}, f64, device));
  check_names(gradcheck(f, {a, b}, options), 1, {1}, "nearer than the step");
  CHECK(gradcheck(f, {b, a.detach()}, options));
}

TEST_CASE_FIXTURE(EachDevice,
                  "gradcheck: rounding of f is neither taken for a gradient nor excused") {
  // Always 1, but for rounding.
  const auto constant = [](In in) { return sum(exp(in[0]) / sum(exp(in[0]))); };
  const auto result = gradcheck(constant, {ramp({7}, device)});
  CHECK_MESSAGE(result.ok, result.report);
  // The offset swallows the digits that a check to 1e-7 would need.
  CHECK(!gradcheck([](In in) { return in[0] * in[0] + 1e9; }, {ramp({7}, device)}));
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: questions that make no sense are errors") {
  const auto f = [](In in) { return exp(in[0]); };
  expect_error([&] { gradcheck(f, {ramp({3}, device).detach()}); }, "gradcheck",
               "no input requires a gradient");
  expect_error([&] { gradcheck(f, {}); }, "gradcheck", "no input requires a gradient");
  expect_error([&] { gradcheck(f, {Tensor()}); }, "gradcheck", "input 0 is undefined");
  expect_error([&] { gradcheck(f, {ones({3}, f32, device).set_requires_grad()}); },
               "input 0 is f32", "f64");
  const Device meta(device.kind(), 0, true);
  expect_error([&] { gradcheck(f, {ones({3}, f64, meta).set_requires_grad()}); }, "input 0",
               "meta");
  const Tensor repeated = ramp({1, 3}, device).detach().expand({4, 3});
  expect_error([&] { gradcheck(f, {repeated.detach().set_requires_grad()}); }, "stride 0",
               "expand inside f");

  const Tensor x = ramp({3}, device);
  expect_error([&] { gradcheck([](In) { return Tensor(); }, {x}); }, "gradcheck", "undefined");
  expect_error([&] { gradcheck([](In in) { return argmax(in[0]); }, {x}); }, "gradcheck",
               "f returned i64");
  expect_error([&] { gradcheck([](In in) { return in[0].to(f32); }, {x}); }, "gradcheck",
               "f returned f32");
  expect_error([&] { gradcheck(f, {x}, {.tolerance = 0}); }, "gradcheck", "tolerance");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: second derivatives are an error that says so") {
  const auto gradient_of_cube = [](In in) {
    Tape tape;
    return tape.gradients(sum(in[0] * in[0] * in[0]), {in[0]})[0];
  };
  expect_error([&] { gradcheck(gradient_of_cube, {ramp({3}, device)}); }, "second derivatives");
  const auto used_further = [&](In in) { return gradient_of_cube(in) * in[0]; };
  expect_error([&] { gradcheck(used_further, {ramp({3}, device)}); }, "second derivatives");
}

TEST_CASE_FIXTURE(EachDevice, "gradcheck: works in the middle of a recording") {
  Tape tape;
  const Tensor a = ramp({3}, device), y = a * a;
  const std::size_t recorded = tape.size();
  CHECK(gradcheck([](In in) { return exp(in[0]); }, {y.detach().set_requires_grad()}));
  CHECK(gradcheck([](In in) { return exp(in[0]); }, {a}));
  CHECK(tape.size() == recorded);
}
