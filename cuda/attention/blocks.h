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

}  // namespace quipu::detail::on_cuda
