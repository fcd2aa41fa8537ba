// Pointwise operators: values, types, broadcasting, strides and errors. Gradients:
// gradients_test.cpp.
#include <cmath>
#include <functional>
#include <limits>

#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/pointwise/unary.h"
#include "support/support.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

const double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

using Binary = std::function<double(double, double)>;

/// f of every pair of entries, one by one, rounded to `dtype`.
Tensor by_hand(const Tensor& a, const Tensor& b, DType dtype, const Binary& f) {
  const Shape shape = broadcast_shapes(a.shape(), b.shape());
  const std::vector<double> x = a.expand(shape).to_vector(), y = b.expand(shape).to_vector();
  std::vector<double> o(x.size());
  for (std::size_t i = 0; i < o.size(); ++i) o[i] = f(x[i], y[i]);
  return from(o, shape, dtype, a.device());
}

void check_values(const Tensor& o, const std::vector<double>& expected) {
  const std::vector<double> values = o.to_vector();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(expected[i])) {
      CHECK(std::isnan(values[i]));
    } else {
      CHECK(values[i] == expected[i]);
    }
  }
}

struct BinaryCase {
  const char* name;
  Tensor (*op)(const Term&, const Term&);
  Binary by_hand;
  bool floating_only = false;
  bool predicate = false;
};

const BinaryCase binary_cases[] = {
    {"add", add, [](double a, double b) { return a + b; }},
    {"sub", sub, [](double a, double b) { return a - b; }},
    {"mul", mul, [](double a, double b) { return a * b; }},
    {"div", div, [](double a, double b) { return a / b; }, true},
    {"pow", pow, [](double a, double b) { return std::pow(a, b); }, true},
    {"maximum", maximum, [](double a, double b) { return std::max(a, b); }},
    {"minimum", minimum, [](double a, double b) { return std::min(a, b); }},
    {"eq", eq, [](double a, double b) { return a == b; }, false, true},
    {"ne", ne, [](double a, double b) { return a != b; }, false, true},
    {"lt", lt, [](double a, double b) { return a < b; }, false, true},
    {"le", le, [](double a, double b) { return a <= b; }, false, true},
    {"gt", gt, [](double a, double b) { return a > b; }, false, true},
    {"ge", ge, [](double a, double b) { return a >= b; }, false, true},
    {"logical_and", logical_and, [](double a, double b) { return a != 0 && b != 0; }, false, true},
    {"remainder", remainder, [](double a, double b) { return std::fmod(a, b); }},
    {"atan2", atan2, [](double a, double b) { return std::atan2(a, b); }, true},
    {"logical_xor", logical_xor, [](double a, double b) { return (a != 0) != (b != 0); }, false,
     true},
    {"logical_or", logical_or, [](double a, double b) { return a != 0 || b != 0; }, false, true},
};

/// Small whole numbers from 1 on, with repetitions: exact in every type but bool.
Tensor small_numbers(const Shape& shape, DType dtype, Device device, std::int64_t step) {
  std::vector<double> values(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(1 + static_cast<std::int64_t>(i) * step % 5);
  }
  return from(values, shape, dtype, device);
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: two tensors of every type and shape") {
  const std::pair<Shape, Shape> shapes[] = {{{}, {}},        {{5, 7}, {5, 7}}, {{5, 7}, {7}},
                                            {{3}, {5, 3}},   {{5, 1}, {1, 7}}, {{131}, {}},
                                            {{3, 0}, {3, 1}}};
  for (const BinaryCase& c : binary_cases) {
    CAPTURE(c.name);
    for (const DType dtype : {f64, f32, bf16, f16, i64, i32, u8}) {
      if (c.floating_only && !is_floating(dtype)) continue;
      CAPTURE(to_string(dtype));
      for (const auto& [first, second] : shapes) {
        const Tensor a = small_numbers(first, dtype, device, 3),
                     b = small_numbers(second, dtype, device, 2);
        // u8 wraps, as by_hand does through i64.
        const Tensor wide = by_hand(a, b, dtype == u8 ? i64 : dtype, c.by_hand);
        const Tensor expected = wide.to(c.predicate ? boolean : dtype);
        const Difference difference = compare(c.op(a, b), expected);
        CHECK_MESSAGE(difference.ok, difference.text);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: a number on either side") {
  const Tensor x = from({1.0, 2.0, 4.0}, f32, device);
  check_values(x + 1, {2, 3, 5});
  check_values(1 + x, {2, 3, 5});
  check_values(x - 1, {0, 1, 3});
  check_values(1 - x, {0, -1, -3});
  check_values(x * 0.5, {0.5, 1, 2});
  check_values(8 / x, {8, 4, 2});
  check_values(x / 2, {0.5, 1, 2});
  check_values(pow(x, 2), {1, 4, 16});
  check_values(pow(2, x), {2, 4, 16});
  check_values(maximum(x, 2), {2, 2, 4});
  check_values(minimum(2, x), {1, 2, 2});
  check_values(-x, {-1, -2, -4});
  check_values(x < 2, {1, 0, 0});
  check_values(2 <= x, {0, 1, 1});
  check_values(x > 1.5, {0, 1, 1});
  check_values(2 >= x, {1, 1, 0});
  CHECK((x + 1).dtype() == f32);
  CHECK((x < 2).dtype() == boolean);
  CHECK((x.to(bf16) * 0.5).dtype() == bf16);
  CHECK((x.to(i32) + 1).dtype() == i32);
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: types promote") {
  const auto sum_type = [&](DType a, DType b) {
    return add(ones({2}, a, device), ones({2}, b, device)).dtype();
  };
  CHECK(sum_type(f32, f64) == f64);
  CHECK(sum_type(bf16, f32) == f32);
  CHECK(sum_type(bf16, f16) == f32);
  CHECK(sum_type(i64, bf16) == bf16);
  CHECK(sum_type(u8, i32) == i32);
  CHECK(sum_type(boolean, u8) == u8);
  check_values(from({3.0}, i64, device) / from({2.0}, f32, device), {1.5});
}

struct UnaryCase {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*by_hand)(double);
};

const UnaryCase unary_cases[] = {
    {"exp", exp, [](double x) { return std::exp(x); }},
    {"log", log, [](double x) { return std::log(x); }},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }},
    {"tanh", tanh, [](double x) { return std::tanh(x); }},
    {"sin", sin, [](double x) { return std::sin(x); }},
    {"cos", cos, [](double x) { return std::cos(x); }},
    {"abs", abs, [](double x) { return std::abs(x); }},
    {"neg", neg, [](double x) { return -x; }},
};

TEST_CASE_FIXTURE(EachDevice, "pointwise: functions of one tensor") {
  for (const UnaryCase& c : unary_cases) {
    CAPTURE(c.name);
    for (const DType dtype : {f64, f32, bf16, f16}) {
      CAPTURE(to_string(dtype));
      for (const Shape& shape : {Shape{}, Shape{5, 7}, Shape{1031}, Shape{3, 0}}) {
        Generator g(7);
        const Tensor x = rand(shape, dtype, device, g) + 0.25;
        std::vector<double> values = x.to_vector();
        for (double& v : values) v = c.by_hand(v);
        const Tensor o = c.op(x);
        CHECK(o.dtype() == dtype);
        const Difference difference =
            compare(o, from(values, shape, dtype, device), {2 * epsilon_of(dtype), 1e-300});
        CHECK_MESSAGE(difference.ok, difference.text);
      }
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: whole numbers stay whole") {
  const Tensor x = from({-3, 0, 7}, i64, device);
  check_values(abs(x), {3, 0, 7});
  check_values(neg(x), {3, 0, -7});
  check_values(clamp(x, -1, 5), {-1, 0, 5});
  check_values(logical_not(x), {0, 1, 0});
  const Tensor large = from({std::int64_t{1} << 53}, i64, device);
  CHECK((large + 1).item_int() == (std::int64_t{1} << 53) + 1);
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: strided and expanded inputs") {
  const Tensor x = arange(0, 35, 1, f32, device).reshape({5, 7});
  const Tensor y = arange(0, 70, 1, f32, device).reshape({7, 10}).slice(1, 1, {}, 2).t();
  CHECK(same_bits(x + y, x + y.contiguous()));
  CHECK(same_bits(x.t() * x.t(), (x * x).t().contiguous()));
  const Tensor row = x.select(0, 2).expand({4, 7});
  CHECK(same_bits(row - 1, row.contiguous() - 1));
  CHECK(same_bits(exp(y * 0.01), exp(y.contiguous() * 0.01)));
  CHECK(same_bits(where(x.t() > 3, y.t(), x.t()),
                  where((x.t() > 3).contiguous(), y.t().contiguous(), x.t().contiguous())));
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: NaN and infinity") {
  const Tensor x = from({nan, 1.0, -infinity, infinity}, f32, device);
  check_values(maximum(x, 0), {nan, 1, 0, infinity});
  check_values(minimum(0, x), {nan, 0, -infinity, 0});
  check_values(clamp(x, -2, 2), {nan, 1, -2, 2});
  check_values(eq(x, x), {0, 1, 1, 1});
  check_values(ne(x, x), {1, 0, 0, 0});
  check_values(exp(x), {nan, static_cast<double>(std::exp(1.0f)), 0, infinity});
  check_values(where(eq(x, x), x, 0), {0, 1, -infinity, infinity});
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: clamp with one bound or two") {
  const Tensor x = from({-2.0, 0.5, 3.0}, f32, device);
  check_values(clamp(x, -1, 1), {-1, 0.5, 1});
  check_values(clamp(x, 0), {0, 0.5, 3});
  check_values(clamp(x, {}, 0.25), {-2, 0.25, 0.25});
  expect_error([&] { clamp(x, {}, {}); }, "clamp", "neither low nor high");
  check_values(clamp(x, 2, 1), {1, 1, 1});  // bounds that cross: the upper one
}

TEST_CASE_FIXTURE(EachDevice, "pointwise: choice") {
  const Tensor mask = from({1.0, 0.0, 1.0}, boolean, device);
  const Tensor a = from({1.0, 2.0, 3.0}, f32, device),
               column = from({10.0, 20.0}, {2, 1}, f32, device);
  check_values(where(mask, a, column), {1, 10, 3, 1, 20, 3});
  check_values(where(mask, a, -1), {1, -1, 3});
  check_values(where(mask, 5, a), {5, 2, 5});
  check_values(masked_fill(a, mask, -infinity), {-infinity, 2, -infinity});
  check_values(masked_fill(column, from({0.0, 1.0}, {2, 1}, boolean, device), 0), {10, 0});
  // What is not chosen does not matter.
  check_values(where(mask, a, from({nan, 2.0, nan}, f32, device)), {1, 2, 3});
}

TEST_CASE("pointwise: errors name the operator and the argument") {
  const Tensor x = ones({2, 3}), whole = ones({2, 3}, i64);
  expect_error([&] { x + ones({2, 4}); }, "add", "(2, 3)", "(2, 4)");
  expect_error([&] { x* ones({3}, f32, "meta:cpu"); }, "mul", "a is on cpu and b on meta:cpu",
               ".to(\"cpu\")");
  expect_error([&] { whole / whole; }, "div", "i64", ".to(f32)");
  expect_error([&] { pow(whole, 2); }, "pow", ".to(f32)");
  expect_error([&] { whole + 0.5; }, "add", "0.5", "i64", ".to(f32)");
  expect_error([&] { lt(whole, 0.5); }, "lt", "0.5");
  expect_error([&] { exp(whole); }, "exp", "x is i64", ".to(f32)");
  expect_error([&] { clamp(whole, 0.5, 2); }, "clamp", "0.5");
  expect_error([&] { add(1, 2); }, "add", "neither a nor b is a tensor");
  expect_error([&] { where(x, x, x); }, "where", "condition is f32", "bool");
  expect_error([&] { where(x > 0, x, x.to(bf16)); }, "where", "a is f32 and b is bf16", ".to(f32)");
  expect_error([&] { masked_fill(x, ones({4}, boolean), 0); }, "masked_fill", "mask has shape (4,)",
               "(2, 3)");
  expect_error([&] { add(Tensor(), x); }, "add");
}

TEST_CASE("pointwise: meta knows shapes and types") {
  const Device meta("meta:cpu");
  const Tensor x = empty({5, 1}, bf16, meta), y = empty({7}, f32, meta);
  CHECK((x * y).shape() == Shape{5, 7});
  CHECK((x * y).dtype() == f32);
  CHECK((x < 1).dtype() == boolean);
  CHECK(where(x > 0, x, 1).device() == meta);
}

}  // namespace
