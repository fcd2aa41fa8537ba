#pragma once
// Learning rates as plain functions of the step, counted from 0. They know nothing of an optimizer
// and keep nothing, so there is nothing to save: `optimizer.set_lr(schedule(step))`.
//
//   const nn::Schedule schedule = nn::warm_up(100, nn::cosine(3e-4, 3e-5, 2000));
#include <cstdint>
#include <functional>

namespace quipu::nn {

/// From the step, 0 for the first one, to a learning rate.
using Schedule = std::function<double(std::int64_t step)>;

/// lr at every step.
Schedule constant(double lr);
// From `from` at step 0 to `to` at step `steps`, and there from then on: straight, or along half a
// cosine wave.
Schedule linear(double from, double to, std::int64_t steps);
Schedule cosine(double from, double to, std::int64_t steps);
/// lr, times `factor` once more after every `every` steps.
Schedule staircase(double lr, double factor, std::int64_t every);
/// lr for `hold` steps, then straight to `to` during the next `decay` ones, and there from then on.
Schedule constant_then_decay(double lr, double to, std::int64_t hold, std::int64_t decay);

/// `steps` steps that rise evenly to where `then` begins: the first has 1 / steps of it. `then`
/// begins after them, at its own step 0.
Schedule warm_up(std::int64_t steps, Schedule then);
/// `first` for `steps` steps, then `then` from its own step 0 on.
Schedule chain(Schedule first, std::int64_t steps, Schedule then);

}  // namespace quipu::nn
