#pragma once
// How a loss makes one number of many.
#include <cstdint>

namespace quipu {

/// What a loss gives back: one number, or one for each row or entry.
enum class LossReduction : std::uint8_t {
  mean,  // of those that count
  sum,
  none,  // as many numbers as there are
};

}  // namespace quipu
