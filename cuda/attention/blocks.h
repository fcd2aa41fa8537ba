#pragma once
// Which calls of attention tensor cores support, and how they split keys: plain host code in every
// build, like workspace.h.
#include "quipu/cuda/workspace.h"
#include "quipu/ops/attention_kernels.h"

namespace quipu::detail::on_cuda {

/// Whether tensor cores have tiles for the rows: whole fragments of 16-bit elements.
inline bool attention_suits_tensor_cores(DType dtype, std::int64_t d, std::int64_t e) {
  const auto fits = [](std::int64_t features) {
    return features > 0 && features <= 128 && features % 16 == 0;
  };
  return is_reduced(dtype) && fits(d) && fits(e);
}

/// Queries of a block.
inline constexpr std::int64_t attention_block_rows = 128;
/// Split-K (flash decoding): keys are cut as those of tpa_decode are, where the queries of a key
/// head are one block's.
inline TpaBlocks attention_blocks(const AttentionInputs& in) {
  const std::int64_t heads = in.k.size(1), m = in.k.size(2);
  const std::int64_t rows = heads > 0 ? in.q.size(1) / heads * in.q.size(2) : 0;
  return tpa_blocks(in.q.size(0) * heads, m,
                    rows <= attention_block_rows &&
                        attention_suits_tensor_cores(in.q.dtype, in.q.size(3), in.v.size(3)));
}

/// Features that tiles have room for.
inline std::int64_t attention_width(std::int64_t d, std::int64_t e) {
  return std::max(d, e) <= 64 ? 64 : 128;
}
/// Backward: keys of a block, and queries of a tile.
inline constexpr std::int64_t attention_side = 64, attention_span = 32;
/// The workspace of backward, in words: first means, then what tensor cores need beside them.
struct AttentionSpace {
  std::int64_t sizes, sums, turns, end;  // where parts begin
};
inline AttentionSpace attention_space(const AttentionInputs& in, bool d_q) {
  const std::int64_t heads = in.q.size(0) * in.k.size(1), rows = in.q.size(1) * in.q.size(2);
  const std::int64_t all = in.q.size(0) * rows, d = in.q.size(3), e = in.v.size(3);
  if (all == 0 || !attention_suits_tensor_cores(in.q.dtype, d, e)) return {all, all, all, all};
  const std::int64_t sizes = in.q.dtype == DType::f16 ? all : 0;
  const std::int64_t sums = (all + sizes + 3) / 4 * 4;  // aligned to 16 bytes
  if (!d_q || in.k.size(2) <= attention_side) return {all, sums, sums, sums};
  const std::int64_t tiles = heads * ((rows / in.k.size(1) + attention_span - 1) / attention_span);
  const std::int64_t turns = sums + tiles * attention_span * attention_width(d, e);
  return {all, sums, turns, turns + tiles + 1};
}

}  // namespace quipu::detail::on_cuda
