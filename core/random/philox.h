#pragma once
// The counter-based generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC 2011), written once for all back ends. Internal to the library.
#include <cstdint>

namespace quipu::detail {

/// Four words of a counter that become four random words.
struct PhiloxBlock {
  std::uint32_t w0, w1, w2, w3;
};

struct PhiloxKey {
  std::uint32_t k0, k1;
  constexpr explicit PhiloxKey(std::uint64_t seed)
      : k0(static_cast<std::uint32_t>(seed)), k1(static_cast<std::uint32_t>(seed >> 32)) {}
  /// The key of the next round.
  constexpr void advance() {
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
};

inline constexpr int philox_rounds = 10;

/// The block of a counter before the first round.
constexpr PhiloxBlock philox_start(std::uint64_t counter) {
  return {static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
}

constexpr PhiloxBlock philox_round(PhiloxBlock c, PhiloxKey key) {
  const std::uint64_t a = std::uint64_t{0xD2511F53} * c.w0;
  const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c.w2;
  return {static_cast<std::uint32_t>(b >> 32) ^ c.w1 ^ key.k0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.w3 ^ key.k1, static_cast<std::uint32_t>(a)};
}

constexpr PhiloxBlock philox_block(PhiloxBlock c, PhiloxKey key) {
  for (int round = 0; round < philox_rounds; ++round, key.advance()) c = philox_round(c, key);
  return c;
}

}  // namespace quipu::detail
