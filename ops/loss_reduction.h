#pragma once
// How a loss makes one number of many.
#include <cstdint>

namespace quipu {

enum class LossReduction : std::uint8_t {
  mean,
  sum,
  none,  // as many numbers as there are
};

}  // namespace quipu
