#pragma once
// Random words for a stretch of positions.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "quipu/core/philox.h"
#include "quipu/core/random.h"

namespace quipu::on_cpu {

/// out[i] = word `first` + i of the stream that starts at `state`. Counters are computed side by
/// side, which becomes vector instructions.
inline void philox_words(std::uint32_t* out, PhiloxState state, std::uint64_t first,
                         std::int64_t n) {
  constexpr std::int64_t most = 64;  // counters at once
  std::uint64_t counter = state.offset + first / 4;
  auto skip = static_cast<std::int64_t>(first % 4);
  while (n > 0) {
    const std::int64_t counters = std::min(most, (skip + n + 3) / 4);
    std::uint32_t words[4 * most];
    for (std::int64_t i = 0; i < counters; ++i) {
      const PhiloxBlock block = philox_block(state.seed, counter + static_cast<std::uint64_t>(i));
      words[4 * i] = block.w0;
      words[4 * i + 1] = block.w1;
      words[4 * i + 2] = block.w2;
      words[4 * i + 3] = block.w3;
    }
    const std::int64_t taken = std::min(n, 4 * counters - skip);
    std::memcpy(out, words + skip, static_cast<std::size_t>(taken) * sizeof *out);
    out += taken;
    n -= taken;
    counter += static_cast<std::uint64_t>(counters);
    skip = 0;
  }
}

}  // namespace quipu::on_cpu
