#pragma once
// How the CPU cuts the work of operators whose partial results need memory of the ledger. By sizes
// alone, so that results do not depend on the number of threads.
#include <algorithm>
#include <cstdint>

namespace quipu::detail::on_cpu {

/// Into how many parts backward of attention cuts the keys of a head, so that a few heads are work
/// for several threads. Every part has its own sum of gradients of q.
inline std::int64_t attention_parts(std::int64_t b, std::int64_t key_heads, std::int64_t m) {
  constexpr std::int64_t units = 32, shortest = 256;
  const std::int64_t heads = std::max<std::int64_t>(b * key_heads, 1);
  return std::clamp<std::int64_t>(m / shortest, 1, (units + heads - 1) / heads);
}

/// Into how many parts the sums of a product are cut: few results that are long sums are work for
/// several threads, and each part keeps a tile of results while it reads its operands once.
inline std::int64_t matmul_parts(std::int64_t products, std::int64_t m, std::int64_t n,
                                 std::int64_t k) {
  constexpr std::int64_t units = 64, shortest = 2048, side = 64;
  const std::int64_t tiles = products * ((m + side - 1) / side) * ((n + side - 1) / side);
  return std::clamp<std::int64_t>(k / shortest, 1,
                                  (units - 1) / std::max<std::int64_t>(tiles, 1) + 1);
}

/// Into how many parts the tokens are cut for the gradient of theta, so that a few heads are work
/// for several threads. Every part of a head has its own sums.
inline std::int64_t lrpe_theta_parts(std::int64_t heads, std::int64_t tokens) {
  constexpr std::int64_t units = 8, shortest = 64;
  const std::int64_t rows = std::max<std::int64_t>(heads, 1);
  return std::clamp<std::int64_t>(tokens / shortest, 1, (units + rows - 1) / rows);
}

/// What softmax over the sequence must know of its columns is found for `entries` batch entries at
/// a time, with the tokens cut into `parts`; each part of an entry has its own numbers. Forward
/// holds fewer of them than a number a column for the largest entries, and one for the sums, would
/// be.
struct LrpeColumns {
  std::int64_t entries, parts;
  std::int64_t slots() const { return entries * parts; }
};
inline LrpeColumns lrpe_columns(std::int64_t batch, std::int64_t tokens, bool backward) {
  constexpr std::int64_t most_parts = 8, shortest = 64, few = 4;
  const std::int64_t fitting = std::clamp<std::int64_t>(tokens / shortest, 1, most_parts);
  if (backward) return {batch, fitting};
  const std::int64_t slots = std::max(most_parts, batch - 1);
  const std::int64_t entries = std::clamp<std::int64_t>(slots / most_parts, std::min(few, batch),
                                                        std::max<std::int64_t>(batch, 1));
  return {entries, std::min(fitting, slots / std::max<std::int64_t>(entries, 1))};
}

/// How many partial sums of the gradients of weight and bias of a norm there are.
inline std::int64_t norm_parts(std::int64_t outer) {
  return std::clamp<std::int64_t>(outer / 32, 1, 32);
}

/// The entries of tpa_decode are cut into `count` blocks that are worked on side by side: as many
/// as make a large batch of work; a small batch of short sequences is not cut.
struct TpaBlocks {
  std::int64_t length, count;
};
inline constexpr std::int64_t most_tpa_blocks = 32;
inline TpaBlocks tpa_blocks(std::int64_t batch, std::int64_t m, bool split) {
  constexpr std::int64_t shortest = 256;
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t wanted = split ? parts(most_tpa_blocks, std::max<std::int64_t>(batch, 1)) : 1;
  const std::int64_t length = std::max(shortest, parts(m, wanted));
  return {length, std::max<std::int64_t>(1, parts(m, length))};
}

}  // namespace quipu::detail::on_cpu
