#pragma once
// The Philox4x32-10 function itself, written once for all back ends.
#include <cstdint>

namespace quipu {

/// Four words of a counter that become four random words.
struct PhiloxBlock {
  std::uint32_t w0, w1, w2, w3;
};

constexpr PhiloxBlock philox_block(PhiloxBlock c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * c.w0;
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c.w2;
    c = {static_cast<std::uint32_t>(b >> 32) ^ c.w1 ^ key0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c.w3 ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

/// The block of one 64-bit counter, keyed by a 64-bit seed.
constexpr PhiloxBlock philox_block(std::uint64_t seed, std::uint64_t counter) {
  return philox_block(
      {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
      static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
}

}  // namespace quipu
