#pragma once
// What a back end provides for softmax attention.
#include <algorithm>

#include "quipu/core/dispatch.h"
#include "quipu/ops/log_sum_kernels.h"

namespace quipu {

/// Any strides. In backward v is undefined where it is not needed.
struct AttentionInputs {
  View q, k, v;  // (b, h, n, d), (b, hk, m, d), (b, hk, m, e)
  bool causal = false;
  double scale = 1;

  const View* first_view() const { return &q; }
};

/// Where a backward kernel leaves gradients.
struct AttentionInputGrads {
  Grad q, k, v;
};

/// d and e that a kernel can do with.
inline constexpr std::int64_t most_attention_features = 512;

/// Into how many parts backward cuts the keys of a head on the CPU, so that a few heads are work
/// for several threads. Every part has its own sum of gradients of q.
inline std::int64_t attention_parts(std::int64_t b, std::int64_t key_heads, std::int64_t m) {
  constexpr std::int64_t units = 8, shortest = 128;
  const std::int64_t heads = std::max<std::int64_t>(b * key_heads, 1);
  return std::clamp<std::int64_t>(m / shortest, 1, (units + heads - 1) / heads);
}
/// Whether those sums need workspace (parts, b, h, n, d) of the compute type: a single one is made
/// in its place unless that would round it again and again. On CUDA every gradient of q is one sum.
inline bool attention_needs_partial(std::int64_t parts, const Grad& d_q, DType compute_type,
                                    DeviceKind kind) {
  return kind == DeviceKind::cpu && d_q.wanted() &&
         (parts > 1 || size_of(d_q.view.dtype) < size_of(compute_type));
}

/// o (b, h, n, e), and the log-sum-exps of the scores, (b, h, n) and contiguous, if they are
/// defined.
inline constinit Kernel<void(const AttentionInputs&, View o, const LogSums&)> attention_forward{
    "attention_forward"};
/// Gradients (=|+=) from d_o (b, h, n, e), but those of q into `partial` if that is defined. The
/// log-sum-exps may have no rest. o, v
/// and `mean`, workspace like an lse, are undefined where neither q nor k wants a gradient.
inline constinit Kernel<void(const AttentionInputs&, View o, const LogSums&, View d_o,
                             const AttentionInputGrads&, View mean, View partial)>
    attention_backward_kernel{"attention_backward"};

}  // namespace quipu
