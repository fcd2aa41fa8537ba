#include "quipu/nn/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "quipu/core/error.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

void check_rate(const char* schedule, const char* name, double lr) {
  check(std::isfinite(lr) && lr >= 0, schedule, ": ", name, " is ", lr,
        ", but a finite number from 0 on is wanted");
}

void check_steps(const char* schedule, const char* name, std::int64_t steps, std::int64_t least) {
  check(steps >= least, schedule, ": ", name, " is ", steps, ", but must be at least ", least);
}

/// How much of `steps` is behind us, between 0 and 1.
double part_of(std::int64_t step, std::int64_t steps) {
  if (steps == 0) return step < 0 ? 0 : 1;
  return std::clamp(static_cast<double>(step) / static_cast<double>(steps), 0.0, 1.0);
}

}  // namespace

Schedule constant(double lr) {
  check_rate("constant", "lr", lr);
  return [=](std::int64_t) { return lr; };
}

Schedule linear(double from, double to, std::int64_t steps) {
  check_rate("linear", "from", from);
  check_rate("linear", "to", to);
  check_steps("linear", "steps", steps, 0);
  return [=](std::int64_t step) {
    const double done = part_of(step, steps);
    return from * (1 - done) + to * done;
  };
}

Schedule cosine(double from, double to, std::int64_t steps) {
  check_rate("cosine", "from", from);
  check_rate("cosine", "to", to);
  check_steps("cosine", "steps", steps, 0);
  return [=](std::int64_t step) {
    const double done = (1 - std::cos(std::numbers::pi * part_of(step, steps))) / 2;
    return from * (1 - done) + to * done;
  };
}

Schedule staircase(double lr, double factor, std::int64_t every) {
  check_rate("staircase", "lr", lr);
  check_rate("staircase", "factor", factor);
  check_steps("staircase", "every", every, 1);
  return [=](std::int64_t step) {
    return lr * std::pow(factor, static_cast<double>(std::max<std::int64_t>(step, 0) / every));
  };
}

Schedule constant_then_decay(double lr, double to, std::int64_t hold, std::int64_t decay) {
  check_rate("constant_then_decay", "lr", lr);
  check_steps("constant_then_decay", "hold", hold, 0);
  return chain(constant(lr), hold, linear(lr, to, decay));
}

Schedule warm_up(std::int64_t steps, Schedule then) {
  check_steps("warm_up", "steps", steps, 0);
  check(static_cast<bool>(then), "warm_up: there is no schedule to warm up for");
  return [steps, then = std::move(then)](std::int64_t step) {
    if (step >= steps) return then(step - steps);
    return then(0) * part_of(step + 1, steps);
  };
}

Schedule chain(Schedule first, std::int64_t steps, Schedule then) {
  check_steps("chain", "steps", steps, 0);
  check(first && then, "chain: a schedule is empty");
  return [first = std::move(first), then = std::move(then), steps](std::int64_t step) {
    return step < steps ? first(step) : then(step - steps);
  };
}

}  // namespace quipu::nn
