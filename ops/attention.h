#pragma once
// attention: softmax(scale q k^T) v, tile by tile with a running softmax, so that scores are never
// in memory: Dao 2023 (FlashAttention-2), arXiv:2307.08691; running softmax: Milakov and Gimelshein
// 2018, arXiv:1805.02867. Fewer key heads than query heads are grouped-query attention (Ainslie et
// al. 2023, arXiv:2305.13245).
#include <optional>

#include "quipu/core/tensor.h"

namespace quipu {

/// Mask and scale of attention.
struct AttentionOptions {
  /// Query i attends to keys j <= i + (m - n): the last query sees all of them, so a single new
  /// token attends to everything before it.
  bool causal = false;
  std::optional<double> scale = {};  // of the scores; d^-0.5 by default
};

/// softmax(scale q k^T) v: q (b, h, n, d), k (b, hk, m, d), v (b, hk, m, e) -> (b, h, n, e).
/// h is a multiple of hk; query head i uses key head i / (h / hk). Queries that attend to nothing
/// give 0. One floating type, computed in f32 (f64 for f64) and rounded once; d and e are at most
/// 512. Strides are any, without a copy; the output is contiguous.
///
/// The scores are never in memory: forward and backward go through them tile by tile. For backward
/// it keeps q, k and two numbers a query in the compute type (the log-sum-exp of its scores, and
/// the digits that this one lost to rounding), and where q or k gets a gradient also v and the
/// output. On CUDA, where a key head has at most 128 queries and heads are few, forward in 16-bit
/// types splits long keys among blocks and takes workspace for their outputs; backward takes one
/// for sums of the gradient of q, f32 of up to 64 or 128 features. On the CPU backward takes
/// workspace for the gradient of q in reduced types, and where b hk is less than 8: there up to
/// 8 / (b hk) times the size of q.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

namespace detail {

/// The same from smaller operators, with all scores in memory: the oracle of the tests and the
/// baseline of the benchmarks.
Tensor attention_composed(const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionOptions& options = {});

struct AttentionOutput {
  Tensor o;          // as attention gives it
  Tensor lse;        // (b, h, n): log-sum-exp of the scores, in the compute type; -inf without any
  Tensor rest = {};  // (b, h, n): what rounding left off of it; 0 where it is undefined
};
struct AttentionGrads {
  Grad q, k, v;
};

// Without any tape: what backward needs of forward, and (=|+=) the gradients that are wanted.
AttentionOutput attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionOptions& options = {});
void attention_backward(const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionOutput& output, const Tensor& d_o, const AttentionGrads& d,
                        const AttentionOptions& options = {});

}  // namespace detail
}  // namespace quipu
