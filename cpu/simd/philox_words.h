#pragma once
// Random words for a stretch of positions.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "quipu/core/random/philox.h"
#include "quipu/core/random/random.h"

namespace quipu::detail::on_cpu {

/// Computes counters side by side: every round is a loop over all of them, which becomes vector
/// instructions.
class PhiloxLanes {
 public:
  static constexpr int count = 64;  // counters at once

  /// out[4 i + j] = word j of counter + i.
  static void words(std::uint32_t* out, std::uint64_t seed, std::uint64_t counter) {
    PhiloxLanes lanes;
    for (int i = 0; i < count; ++i)
      lanes.put(i, philox_start(counter + static_cast<std::uint64_t>(i)));
    PhiloxKey key(seed);
    for (int round = 0; round < philox_rounds; ++round, key.advance()) {
      for (int i = 0; i < count; ++i) lanes.put(i, philox_round(lanes.get(i), key));
    }
    for (int i = 0; i < count; ++i) {
      const PhiloxBlock block = lanes.get(i);
      out[4 * i] = block.w0;
      out[4 * i + 1] = block.w1;
      out[4 * i + 2] = block.w2;
      out[4 * i + 3] = block.w3;
    }
  }

 private:
  PhiloxBlock get(int i) const { return {w0_[i], w1_[i], w2_[i], w3_[i]}; }
  void put(int i, const PhiloxBlock& block) {
    w0_[i] = block.w0;
    w1_[i] = block.w1;
    w2_[i] = block.w2;
    w3_[i] = block.w3;
  }
  std::uint32_t w0_[count], w1_[count], w2_[count], w3_[count];
};

/// out[i] = word `first` + i of the stream that starts at `state`.
inline void philox_words(std::uint32_t* out, PhiloxState state, std::uint64_t first,
                         std::int64_t n) {
  constexpr std::int64_t most = 4 * PhiloxLanes::count;
  std::uint64_t counter = state.offset + first / 4;
  for (auto skip = static_cast<std::int64_t>(first % 4); n > 0; skip = 0) {
    std::uint32_t words[most];
    const std::int64_t taken = std::min(n, most - skip);
    if (skip + taken > 32) {
      PhiloxLanes::words(words, state.seed, counter);
    } else {  // short runs are quicker one by one
      for (std::int64_t i = 0; i < skip + taken; i += 4, ++counter) {
        const PhiloxBlock block = philox_block(philox_start(counter), PhiloxKey(state.seed));
        std::memcpy(words + i, &block, sizeof block);
      }
    }
    std::memcpy(out, words + skip, static_cast<std::size_t>(taken) * sizeof *out);
    out += taken;
    n -= taken;
    counter += PhiloxLanes::count;
  }
}

}  // namespace quipu::detail::on_cpu
