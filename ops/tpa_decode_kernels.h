#pragma once
// What a back end provides for attention over factored keys and values.
#include <algorithm>

#include "quipu/core/dispatch.h"
#include "quipu/ops/log_sum_kernels.h"

namespace quipu {

/// The factors, with any strides. In backward, av or bv is undefined where it is not needed.
struct TpaInputs {
  View aq, bq;             // (b, h, r), (b, r, d)
  View ak, bk;             // (b, m, key rank, h), (b, m, key rank, d)
  View av, bv;             // (b, m, value rank, h), (b, m, value rank, e)
  View lengths;            // (b,) i64, or undefined
  double score_scale = 1;  // scale scale_q scale_k
  double value_scale = 1;
  bool split = true;  // entries may be cut into blocks

  const View* first_view() const { return &aq; }
};

/// Where a backward kernel leaves gradients; shapes as in TpaInputs.
struct TpaInputGrads {
  Grad aq, bq, ak, bk, av, bv;

  /// Whether a gradient flows through the scores.
  bool of_scores() const { return aq.wanted() || bq.wanted() || ak.wanted() || bk.wanted(); }
};

/// Heads, and r, that a kernel can do with.
inline constexpr std::int64_t most_tpa_width = 1024;

/// The entries are cut into `count` blocks that are worked on side by side.
struct TpaBlocks {
  std::int64_t length, count;
};
inline constexpr std::int64_t most_tpa_blocks = 32;

/// As many as make a large batch of work; a small batch of short sequences is not cut.
inline TpaBlocks tpa_blocks(std::int64_t batch, std::int64_t m, bool split = true,
                            std::int64_t most = most_tpa_blocks) {
  constexpr std::int64_t shortest = 256;
  if (!split) return {std::max(shortest, m), 1};
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t wanted = parts(most, std::max<std::int64_t>(batch, 1));
  const std::int64_t length = std::max(shortest, parts(m, wanted));
  return {length, std::max<std::int64_t>(1, parts(m, length))};
}

/// On CUDA two for each of 128 multiprocessors, whatever the device has, so that a result does not
/// depend on it; they are of whole tiles.
inline constexpr std::int64_t most_cuda_tpa_blocks = 256, cuda_tpa_tile = 32;
inline TpaBlocks tpa_blocks_on(DeviceKind kind, std::int64_t batch, std::int64_t m,
                               bool split = true) {
  if (kind != DeviceKind::cuda) return tpa_blocks(batch, m, split);
  TpaBlocks blocks = tpa_blocks(batch, m, split, most_cuda_tpa_blocks);
  blocks.length = (blocks.length + cuda_tpa_tile - 1) / cuda_tpa_tile * cuda_tpa_tile;
  blocks.count = std::max<std::int64_t>(1, (m + blocks.length - 1) / blocks.length);
  return blocks;
}

/// Workspace of forward, in the compute type, if there is more than one block: each block's output,
/// log-sum-exp and its rest, in an order of the device's own.
inline Shape tpa_forward_workspace(DeviceKind kind, std::int64_t b, std::int64_t m, std::int64_t h,
                                   std::int64_t e) {
  return {b, tpa_blocks_on(kind, b, m).count, h, e + 2};
}
/// Workspace of backward, in the compute type, if aq or bq wants a gradient: each block's part of
/// both.
inline Shape tpa_backward_workspace(DeviceKind kind, std::int64_t b, std::int64_t m, std::int64_t h,
                                    std::int64_t r, std::int64_t d, bool split = true) {
  return {b, tpa_blocks_on(kind, b, m, split).count, h * r + r * d};
}

/// o (b, h, e) in the type of the factors or in the compute type, and the log-sum-exps of the
/// scores, (b, h), if they are defined. A length that is not in [0, m] is an error: thrown, or at
/// the next synchronisation of the device.
inline constinit Kernel<void(const TpaInputs&, View o, const LogSums&, View workspace)>
    tpa_decode_forward{"tpa_decode_forward"};
/// Gradients (=|+=) from d_o (b, h, e). o is in the compute type, and undefined where no gradient
/// flows through the scores.
inline constinit Kernel<void(const TpaInputs&, View o, const LogSums&, View d_o,
                             const TpaInputGrads&, View workspace)>
    tpa_decode_backward_kernel{"tpa_decode_backward"};

}  // namespace quipu
