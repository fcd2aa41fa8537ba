#pragma once
// How the CUDA back end cuts the work of operators whose partial results need memory of the ledger:
// plain host code in every build, so that meta:cuda gives the memory of a card that is not there.
// By sizes alone, never by what the card has: same bits on each, but for backward of flao
// (mma.cuh).
#include <algorithm>
#include <cstdint>

#include "quipu/ops/flao/kernels.h"

namespace quipu::detail::on_cuda {

/// The card that cuts are made for has as many multiprocessors as an A100.
inline constexpr std::int64_t multiprocessors = 108;

/// Into how many parts each line of softmax is cut: several only where there are too few lines to
/// keep the card busy and each is long.
inline std::int64_t softmax_parts(std::int64_t lines, std::int64_t length) {
  constexpr std::int64_t together = 32;  // lines that a block takes side by side
  constexpr std::int64_t enough_blocks = 256, shortest_part = 1024, uncut = 4096;
  if (lines == 0 || length <= uncut) return 1;
  const std::int64_t blocks = (lines + together - 1) / together;
  return std::clamp<std::int64_t>(enough_blocks / blocks, 1, length / shortest_part);
}

/// Into how many parts the tokens are cut for softmax over them: several where there are too few
/// columns (b h d) to keep the card busy and enough tokens for each.
constexpr std::int64_t lrpe_parts(std::int64_t columns, std::int64_t tokens) {
  constexpr std::int64_t of_block = 64, enough_blocks = 256, uncut = 2048, shortest = 512;
  if (columns == 0 || tokens <= uncut) return 1;
  const std::int64_t blocks = (columns + of_block - 1) / of_block;
  return std::clamp<std::int64_t>(enough_blocks / blocks, 1, tokens / shortest);
}

/// Into how many parts the tokens are cut for the gradient of theta: enough for several blocks a
/// multiprocessor, where a block has one head and up to 256 of its angles.
constexpr std::int64_t lrpe_theta_parts(std::int64_t heads, std::int64_t angles,
                                        std::int64_t tokens) {
  constexpr std::int64_t of_block = 256, shortest = 64, enough = 4 * multiprocessors;
  const std::int64_t blocks =
      std::max<std::int64_t>(heads * ((angles + of_block - 1) / of_block), 1);
  return std::max<std::int64_t>(std::min(tokens / shortest, enough / blocks), 1);
}

/// Parts of the rows that the gradients of weight and bias of a norm are summed over: two blocks a
/// multiprocessor, where each has eight rows and 16384 entries at least.
constexpr std::int64_t norm_parts(std::int64_t outer, std::int64_t length) {
  const std::int64_t most = std::min(outer / 8, outer * length / 16384);
  return std::clamp<std::int64_t>(most, 1, 2 * multiprocessors);
}

/// Split-K of flao: a sequence is cut into parts, which blocks work on at once and whose sums are
/// added in order. Enough parts for two rounds of two blocks a multiprocessor.
constexpr std::int64_t flao_parts(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t shortest = 512;  // tokens of a part
  constexpr std::int64_t enough = 4 * multiprocessors;
  const std::int64_t most = (tokens + shortest - 1) / shortest;
  const std::int64_t wanted = (enough + units - 1) / std::max<std::int64_t>(units, 1);
  return std::max<std::int64_t>(std::min(most, wanted), 1);
}
/// Tokens of a part; the last ones have fewer, or none.
constexpr std::int64_t flao_part_length(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t step = 64;
  const std::int64_t parts = flao_parts(tokens, units);
  return ((tokens + parts - 1) / parts + step - 1) / step * step;
}
/// The sums of parts of kv (over keys) or d_kv (over queries), where there are several: elements.
constexpr std::int64_t flao_sum_space(const FlaoSizes& s, bool over_queries, bool over_keys) {
  const std::int64_t parts = std::max(over_queries ? flao_parts(s.n, s.units) : 1,
                                      over_keys ? flao_parts(s.m, s.units) : 1);
  return parts > 1 ? parts * s.units * s.width * s.e : 0;
}
/// Whether the sums of parts of kv find room in o, which is not written before they are added.
inline bool flao_sums_fit_output(const FlaoSizes& s, DType dtype) {
  const auto of_o = static_cast<std::int64_t>(size_of(dtype)) * s.n;
  const auto of_sums = static_cast<std::int64_t>(size_of(compute_type(dtype))) * s.width;
  return of_sums * flao_parts(s.m, s.units) <= of_o;
}

/// Features of a row, encoded or not, that the tensor-core kernels of flao have tiles for.
inline constexpr int flao_widest_on_tensor_cores = 128;
/// Whether flao goes by tensor cores, where layouts allow it: 16-bit types, rows of whole
/// fragments, no softmax over the sequence, sizes that fit into the kernels' ints and none of them
/// zero.
inline bool flao_suits_tensor_cores(const FlaoSizes& s, const FlaoTransforms& transforms,
                                    DType dtype) {
  constexpr std::int64_t most = std::int64_t{1} << 30, widest = flao_widest_on_tensor_cores;
  for (const RowTransform* x : {&transforms.q, &transforms.k, &transforms.v, &transforms.g}) {
    if (x->softmax_over_sequence()) return false;
  }
  if (!is_reduced(dtype) || s.d % 16 != 0 || s.e % 16 != 0) return false;
  return s.width > 0 && s.width <= widest && s.e > 0 && s.e <= widest && s.units > 0 && s.n > 0 &&
         s.m > 0 && s.n < most && s.m < most && s.units * std::max(s.n, s.m) / 64 < most;
}

/// Split-K of tpa_decode: the entries are cut into `count` blocks of whole tiles.
struct TpaBlocks {
  std::int64_t length, count;
};
inline constexpr std::int64_t tpa_tile = 32;
inline TpaBlocks tpa_blocks(std::int64_t batch, std::int64_t m, bool split) {
  constexpr std::int64_t most = 256;  // two for each of 128 multiprocessors
  constexpr std::int64_t shortest = 256;
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t wanted = split ? parts(most, std::max<std::int64_t>(batch, 1)) : 1;
  const std::int64_t length = parts(std::max(shortest, parts(m, wanted)), tpa_tile) * tpa_tile;
  return {length, std::max<std::int64_t>(1, parts(m, length))};
}

}  // namespace quipu::detail::on_cuda
