#pragma once
// bf16 and half as the toolkit's own headers compute them on the host; bits in, bits out.
#include <cstdint>

namespace quipu::testing::toolkit {

struct Reduced {
  std::uint16_t (*from_float)(float);
  std::uint16_t (*from_double)(double);
  float (*to_float)(std::uint16_t);
  std::uint16_t (*add)(std::uint16_t, std::uint16_t);
  std::uint16_t (*subtract)(std::uint16_t, std::uint16_t);
  std::uint16_t (*multiply)(std::uint16_t, std::uint16_t);
  std::uint16_t (*divide)(std::uint16_t, std::uint16_t);
};
Reduced bf16();
Reduced half();

}  // namespace quipu::testing::toolkit
