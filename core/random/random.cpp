#include "quipu/core/random/random.h"

#include <utility>

#include "quipu/core/error.h"
#include "quipu/core/graph/step_recorder.h"
#include "quipu/core/random/philox.h"

namespace quipu {
using namespace detail;
namespace {

thread_local DrawScope* draw_scope = nullptr;

}  // namespace

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
  return draw_scope ? draw_scope->next(*this, counters) : take(counters);
}

PhiloxState Generator::take(std::uint64_t counters) {
  return step_recorder ? step_recorder->draw(*this, counters) : advance(counters);
}

PhiloxState Generator::advance(std::uint64_t counters) {
  const std::lock_guard lock(mutex_);
  return std::exchange(state_, {state_.seed, state_.offset + counters});
}

DrawScope::DrawScope(std::vector<PhiloxState>& draws, Mode mode)
    : draws_(draws), mode_(mode), outer_(std::exchange(draw_scope, this)) {}

DrawScope::~DrawScope() {
  draw_scope = outer_;
}

PhiloxState DrawScope::next(Generator& generator, std::uint64_t counters) {
  if (mode_ == Mode::repeat) {
    check(repeated_ < draws_.size(), "random numbers are drawn more often than the first time (",
          draws_.size(), " times)");
    return draws_[repeated_++];
  }
  draws_.push_back(outer_ ? outer_->next(generator, counters) : generator.take(counters));
  return draws_.back();
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
