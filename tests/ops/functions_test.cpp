// Functions of one tensor, activations, bits and remainders: values at their ends, kinks, NaN,
// whole numbers, digits that a composition would lose, errors. Gradients: gradients_test.cpp.
#include <quipu/quipu.h>

#include <cmath>
#include <limits>

#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

/// The same numbers, NaN and signs of zeros included; a rounding in f32 is allowed.
void check_values(const Tensor& o, const std::vector<double>& expected) {
  const std::vector<double> values = o.to_vector();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    if (std::isnan(expected[i])) {
      CHECK(std::isnan(values[i]));
    } else {
      const double allowed = 2 * epsilon_of(f32) * std::abs(expected[i]);
      CHECK((values[i] == expected[i] || std::abs(values[i] - expected[i]) <= allowed));
      CHECK(std::signbit(values[i]) == std::signbit(expected[i]));
    }
  }
}

Tensor gradient_at(const std::vector<double>& at, Device device,
                   const std::function<Tensor(const Tensor&)>& f) {
  const Tensor x =
      from(at, {static_cast<std::int64_t>(at.size())}, f32, device).set_requires_grad();
  Tape tape;
  tape.backward(sum(f(x)));
  return x.grad();
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "functions: at the ends of their range") {
  const Tensor ends = from({-infinity, -1.0, -0.0, 0.0, 1.0, infinity, nan}, {7}, f32, device);
  check_values(log1p(ends), {nan, -infinity, -0.0, 0, std::log1p(1.0f), infinity, nan});
  check_values(expm1(ends), {-1, std::expm1(-1.0f), -0.0, 0, std::expm1(1.0f), infinity, nan});
  check_values(erf(from({-infinity, -0.0, 0.0, infinity, nan}, {5}, f32, device)),
               {-1, -0.0, 0, 1, nan});
  check_values(asin(from({-2.0, -0.0, 2.0, nan}, {4}, f32, device)), {nan, -0.0, nan, nan});
  check_values(acos(from({-2.0, 1.0, 2.0, nan}, {4}, f32, device)), {nan, 0, nan, nan});
  check_values(acosh(from({-infinity, 0.5, 1.0, infinity, nan}, {5}, f32, device)),
               {nan, nan, 0, infinity, nan});
  check_values(atanh(from({-2.0, -1.0, -0.0, 1.0, 2.0, nan}, {6}, f32, device)),
               {nan, -infinity, -0.0, infinity, nan, nan});
  check_values(sinh(from({-infinity, -0.0, infinity, nan}, {4}, f32, device)),
               {-infinity, -0.0, infinity, nan});
  check_values(cosh(from({-infinity, 0.0, infinity, nan}, {4}, f32, device)),
               {infinity, 1, infinity, nan});
  check_values(reciprocal(from({-infinity, -0.0, 0.0, 4.0, nan}, {5}, f32, device)),
               {-0.0, -infinity, infinity, 0.25, nan});
  check_values(isnan(ends), {0, 0, 0, 0, 0, 0, 1});
  check_values(isinf(ends), {1, 0, 0, 0, 0, 1, 0});
  check_values(isfinite(ends), {0, 1, 1, 1, 1, 0, 0});
}

TEST_CASE_FIXTURE(EachDevice, "functions: steps round as their names say, and have gradient 0") {
  const std::vector<double> at = {-2.5, -1.5, -0.5, -0.2, -0.0, 0.5, 1.5, 2.7, 1e30, infinity, nan};
  for (const DType dtype : {f64, f32}) {
    const Tensor x = from(at, {11}, dtype, device);
    const double large = x.to_vector()[8];
    check_values(floor(x), {-3, -2, -1, -1, -0.0, 0, 1, 2, large, infinity, nan});
    check_values(ceil(x), {-2, -1, -0.0, -0.0, -0.0, 1, 2, 3, large, infinity, nan});
    check_values(round(x), {-2, -2, -0.0, -0.0, -0.0, 0, 2, 3, large, infinity, nan});
    check_values(trunc(x), {-2, -1, -0.0, -0.0, -0.0, 0, 1, 2, large, infinity, nan});
  }
  const Tensor whole = from({std::int64_t{-7}, std::int64_t{0}, std::int64_t{9}}).to(device);
  for (const auto f : {floor, ceil, quipu::round, quipu::trunc}) CHECK(same_bits(f(whole), whole));
  check_values(sign(whole), {-1, 0, 1});
  check_values(square(whole), {49, 0, 81});
  check_values(isnan(whole), {0, 0, 0});
  check_values(isfinite(whole), {1, 1, 1});
  check_values(gradient_at({-1.5, 0.3}, device, [](const Tensor& x) { return floor(x); }), {0, 0});
  check_values(gradient_at({-1.5, 0.3}, device, [](const Tensor& x) { return x + sign(x); }),
               {1, 1});
}

TEST_CASE_FIXTURE(EachDevice, "functions: activations at kinks and far from 0") {
  const Tensor far = from({-infinity, -200.0, 200.0, infinity, nan}, {5}, f32, device);
  check_values(relu(far), {0, 0, 200, infinity, nan});
  check_values(softplus(far), {0, 0, 200, infinity, nan});
  check_values(elu(far, 2), {-2, -2, 200, infinity, nan});
  check_values(leaky_relu(far, 0.5), {-infinity, -100, 200, infinity, nan});
  check_values(mish(far.slice(0, 1)), {-0.0, 200, infinity, nan});
  check_values(gelu_tanh(far.slice(0, 1)), {-0.0, 200, infinity, nan});
  check_values(hardswish(from({-4.0, -3.0, 0.0, 3.0, 4.0, nan}, {6}, f32, device)),
               {-0.0, -0.0, 0, 3, 4, nan});

  const auto slope = [&](const auto& f) { return gradient_at({-3, 0, 3}, device, f); };
  check_values(slope([](const Tensor& x) { return relu(x); }), {0, 0, 1});
  check_values(slope([](const Tensor& x) { return leaky_relu(x, 0.25); }), {0.25, 0.25, 1});
  check_values(slope([](const Tensor& x) { return elu(x, 2).slice(0, 1); }), {0, 2, 1});
  check_values(slope([](const Tensor& x) { return hardswish(x); }), {0, 0.5, 1});
  check_values(gradient_at({-1e30, -200, 200, 1e30}, device,
                           [](const Tensor& x) { return gelu_tanh(x) + mish(x); }),
               {0, 0, 2, 2});
}

TEST_CASE_FIXTURE(EachDevice, "functions: by their own names they are what act gives") {
  const Tensor x = randn({5, 67}, f32, device);
  for (const DType dtype : {f64, f32, bf16, f16}) {
    const Tensor in = x.to(dtype);
    CHECK(same_bits(relu(in), act(in, Act::relu)));
    CHECK(same_bits(sigmoid(in), act(in, Act::sigmoid)));
    CHECK(same_bits(silu(in), act(in, Act::silu)));
    CHECK(same_bits(softmax(in, 0), act(in, Act::softmax, 0)));
  }
}

TEST_CASE_FIXTURE(EachDevice, "functions: log_softmax keeps its digits") {
  // One class has nearly all: its logarithm is -e^-14, of which 1 - e^-14 has few digits.
  const Tensor sure = from({0.0, -14.0}, {2}, f32, device);
  const std::vector<double> logs = log_softmax(sure, 0).to_vector();
  CHECK(std::abs(logs[0] + std::log1p(std::exp(-14.0))) <= 4 * epsilon_of(f32) * std::exp(-14.0));
  CHECK(std::abs(logs[1] + 14) <= 14 * epsilon_of(f32));
  // A shift by 1e7 changes nothing; in bf16 the result is rounded once.
  const Tensor x = randint(-8, 8, {6, 33}).to(f32).to(device);
  CHECK(same_bits(log_softmax(x + 1e7, 1), log_softmax(x, 1)));
  const Tensor in_f64 = log_softmax(x.to(f64), 1);
  CHECK(allclose(log_softmax(x.to(bf16), 1), in_f64.to(bf16)));
  CHECK(allclose(exp(in_f64), softmax(x.to(f64), 1)));
  check_values(log_softmax(from({-infinity, 0.0}, {2}, f32, device), 0), {-infinity, 0});
}

TEST_CASE_FIXTURE(EachDevice, "functions: remainder has the sign of its divisor") {
  const Tensor a = from({7.0, -7.0, 7.0, -7.0, 5.0, -0.5, 3.0}, {7}, f32, device);
  const Tensor b = from({3.0, 3.0, -3.0, -3.0, 0.0, infinity, infinity}, {7}, f32, device);
  check_values(remainder(a, b), {1, 2, -2, -1, nan, infinity, 3});
  const Tensor m = from({std::int64_t{7}, std::int64_t{-7}, std::int64_t{7},
                         std::numeric_limits<std::int64_t>::min()})
                       .to(device);
  const Tensor n =
      from({std::int64_t{-3}, std::int64_t{3}, std::int64_t{0}, std::int64_t{-1}}).to(device);
  check_values(remainder(m, n), {-2, 2, 0, 0});
  check_values(remainder(from({std::uint8_t{250}, std::uint8_t{7}}).to(device), 100), {50, 7});
}

TEST_CASE_FIXTURE(EachDevice, "functions: bits of whole numbers and masks") {
  const Tensor a = from({std::int64_t{12}, std::int64_t{-1}}).to(device);
  check_values(a & 10, {8, 10});
  check_values(a | 3, {15, -1});
  check_values(a ^ a, {0, 0});
  check_values(~a, {-13, 0});
  check_values(shift_left(a, 2), {48, -4});
  check_values(shift_right(a, 2), {3, -1});
  check_values(shift_left(a, 64), {0, 0});
  check_values(shift_right(a, -1), {0, -1});
  const Tensor bytes = from({std::uint8_t{200}, std::uint8_t{1}}).to(device);
  check_values(~bytes, {55, 254});
  check_values(shift_left(bytes, 1), {144, 2});
  const Tensor x = arange(4).to(device);
  const Tensor mask = (x > 0) & (x < 3);
  CHECK(mask.dtype() == boolean);
  check_values(mask, {0, 1, 1, 0});
  check_values(~mask, {1, 0, 0, 1});
  check_values(mask | (x > 2), {0, 1, 1, 1});
  check_values(logical_xor(mask, x > 1), {0, 1, 0, 1});
}

TEST_CASE("functions: say what does not fit") {
  expect_error([] { erf(arange(3)); }, "erf", "x is i64");
  expect_error([] { relu(arange(3)); }, "relu", "x is i64");
  expect_error([] { atan2(arange(3), arange(3)); }, "atan2", "i64");
  expect_error([] { bitwise_and(ones({3}), ones({3})); }, "bitwise_and", "f32");
  expect_error([] { shift_left(arange(3) > 1, 1); }, "shift_left", "a is bool");
  expect_error([] { log_softmax(ones({3}), 1); }, "log_softmax", "dim");
}
