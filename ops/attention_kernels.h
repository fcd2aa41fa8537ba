#pragma once
// What a back end provides for softmax attention.
#include "quipu/core/dispatch.h"

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

/// Whether backward takes whole key heads at a time and finds all gradients in one pass, in which
/// those of q are added to once for every block of keys, so they must not be rounded. With fewer
/// heads it makes two passes over smaller pieces, and rounds once.
inline bool attention_in_one_pass(std::int64_t b, std::int64_t key_heads,
                                  const AttentionInputGrads& d) {
  return d.q.wanted() && (d.k.wanted() || d.v.wanted()) && b * key_heads >= 16;
}

/// o (b, h, n, e), and lse (b, h, n), contiguous and in the compute type, if it is defined.
inline constinit Kernel<void(const AttentionInputs&, View o, View lse)> attention_forward{
    "attention_forward"};
/// Gradients (=|+=) from d_o (b, h, n, e). o, v and `mean`, workspace like lse, are undefined where
/// neither q nor k wants a gradient.
inline constinit Kernel<void(const AttentionInputs&, View o, View lse, View d_o,
                             const AttentionInputGrads&, View mean)>
    attention_backward_kernel{"attention_backward"};

}  // namespace quipu
