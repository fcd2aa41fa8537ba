#include <quipu/nn/train/schedule.h>

#include <cmath>
#include <limits>

#include "support/support.h"

using namespace quipu;
using namespace quipu::nn;

namespace {

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-15 * std::max(1.0, std::abs(b));
}

}  // namespace

TEST_CASE("schedule: constant") {
  const Schedule s = constant(0.25);
  for (const std::int64_t step : {0, 1, 1000000}) CHECK(s(step) == 0.25);
}

TEST_CASE("schedule: linear and cosine meet both ends exactly and stay there") {
  for (const Schedule& s : {linear(0.5, 0.125, 8), cosine(0.5, 0.125, 8)}) {
    CHECK(s(0) == 0.5);
    CHECK(s(8) == 0.125);
    CHECK(s(9) == 0.125);
    CHECK(s(1 << 30) == 0.125);
    CHECK(near(s(4), 0.3125));
    for (std::int64_t step = 0; step < 8; ++step) CHECK(s(step) > s(step + 1));
  }
  CHECK(near(linear(0.5, 0.125, 8)(2), 0.40625));
  CHECK(near(cosine(0.5, 0.125, 8)(2), 0.125 + 0.375 * (1 + std::sqrt(0.5)) / 2));
}

TEST_CASE("schedule: rates may rise, and may take no steps at all") {
  CHECK(linear(0, 1, 4)(1) == 0.25);
  CHECK(linear(1, 0.5, 0)(0) == 0.5);
  CHECK(cosine(1, 0.5, 0)(0) == 0.5);
}

TEST_CASE("schedule: a staircase goes down after every so many steps") {
  const Schedule s = staircase(1, 0.5, 10);
  CHECK(s(0) == 1);
  CHECK(s(9) == 1);
  CHECK(s(10) == 0.5);
  CHECK(s(19) == 0.5);
  CHECK(s(30) == 0.125);
}

TEST_CASE("schedule: constant, then decay") {
  const Schedule s = constant_then_decay(0.5, 0, 10, 4);
  CHECK(s(0) == 0.5);
  CHECK(s(9) == 0.5);
  CHECK(s(10) == 0.5);
  CHECK(s(11) == 0.375);
  CHECK(s(14) == 0);
  CHECK(s(100) == 0);
}

TEST_CASE("schedule: a warm-up rises to where the next one begins") {
  const Schedule s = warm_up(4, linear(1, 0, 10));
  CHECK(s(0) == 0.25);
  CHECK(s(1) == 0.5);
  CHECK(s(3) == 1);
  CHECK(s(4) == 1);
  CHECK(near(s(5), 0.9));
  CHECK(s(14) == 0);
  CHECK(warm_up(0, constant(3))(0) == 3);
  CHECK(warm_up(1, constant(3))(0) == 3);
  const Schedule nested = warm_up(2, chain(constant(1), 3, cosine(1, 0, 4)));
  CHECK(nested(0) == 0.5);
  CHECK(nested(4) == 1);
  CHECK(nested(5) == 1);
  CHECK(near(nested(7), 0.5));
  CHECK(nested(9) == 0);
}

TEST_CASE("schedule: says what does not fit") {
  expect_error([] { constant(-1); }, "constant: lr is -1");
  expect_error([] { linear(1, std::numeric_limits<double>::quiet_NaN(), 3); }, "linear: to is nan");
  expect_error([] { cosine(1, 0, -1); }, "cosine: steps is -1, but must be at least 0");
  expect_error([] { staircase(1, 0.5, 0); }, "staircase: every is 0, but must be at least 1");
  expect_error([] { warm_up(3, {}); }, "warm_up: there is no schedule");
  expect_error([] { chain({}, 3, constant(1)); }, "chain: a schedule is empty");
}
