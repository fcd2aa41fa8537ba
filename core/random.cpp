#include "quipu/core/random.h"

#include <utility>

#include "quipu/core/philox.h"

namespace quipu {

void Generator::seed(std::uint64_t seed) {
  set_state({seed, 0});
}

PhiloxState Generator::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void Generator::set_state(PhiloxState state) {
  const std::lock_guard lock(mutex_);
  state_ = state;
}

PhiloxState Generator::reserve(std::uint64_t counters) {
  const std::lock_guard lock(mutex_);
  return std::exchange(state_, {state_.seed, state_.offset + counters});
}

Generator& default_generator() {
  static auto* generator =
      new Generator;  // never destroyed: statics of the user's may draw while the program ends
  return *generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator().seed(seed);
}

std::array<std::uint32_t, 4> philox(std::uint64_t seed, std::uint64_t counter) {
  const PhiloxBlock block = philox_block(philox_start(counter), PhiloxKey(seed));
  return {block.w0, block.w1, block.w2, block.w3};
}

}  // namespace quipu
