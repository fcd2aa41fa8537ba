#pragma once
// tpa_decode: tensor product attention (Zhang et al. 2025, arXiv:2501.06425), one new token against
// a cache that holds keys and values as factors:
//   o = softmax(q K^T) V,  q = sum_r aq_r x bq_r,  K_j = ak_j x bk_j,  V_j = av_j x bv_j
// where x is the outer product over heads and features. Queries, keys and values are never formed:
// scores and sums are products of the factors. The running softmax and blocks of entries that are
// put together by their log-sum-exps are those of attention (ops/attention.h).
#include <optional>

#include "quipu/core/tensor.h"

namespace quipu {

/// Scales, and which entries of the cache count.
struct TpaOptions {
  std::optional<double> scale = {};    // of the scores; d^-0.5 by default
  std::optional<double> scale_q = {};  // of queries; 1 / r by default
  std::optional<double> scale_k = {};  // of keys; 1 by default
  std::optional<double> scale_v = {};  // of values; 1 by default
  bool split = true;    // long sequences of small batches in blocks side by side, which takes
                        // workspace for their results; false: each sequence in one go
  Tensor lengths = {};  // (b,), i64: entries from there on do not attend; without it all do
};

/// aq (b, 1, h, r), bq (b, 1, r, d), ak (b, m, h), bk (b, m, d), av (b, m, h), bv (b, m, e)
/// -> (b, 1, h, e). With
///   q[b, h, d] = scale_q sum_r aq[b, h, r] bq[b, r, d]
///   k[b, m, h, d] = scale_k ak[b, m, h] bk[b, m, d]
///   v[b, m, h, e] = scale_v av[b, m, h] bv[b, m, e]
/// it is softmax over m of (scale q k) times v; queries, keys and values are never formed. Keys may
/// be sums of several products: ak (b, m, rank, h) with bk (b, m, rank, d), and likewise values,
/// with a rank of their own. Where nothing attends, the output is 0. One floating type, computed in
/// f32 (f64 for f64) and rounded once; at most 1024 heads and r at most 1024.
///
/// For backward it keeps the inputs, the lengths and two numbers a head in the compute type (the
/// log-sum-exp of its scores, and the digits that this one lost to rounding). av and bv are not
/// kept where only the other of them gets a gradient; the output is kept where a factor of queries
/// or keys gets one: before it is rounded, because their gradients are differences that its last
/// bits decide.
Tensor tpa_decode(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                  const Tensor& bk, const Tensor& bv, const TpaOptions& options = {});

namespace detail {

/// The same from smaller operators, with keys and values formed in full: the oracle of the tests
/// and the baseline of the benchmarks.
Tensor tpa_decode_composed(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                           const Tensor& bk, const Tensor& bv, const TpaOptions& options = {});

struct TpaOutput {
  Tensor o;          // as tpa_decode gives it
  Tensor unrounded;  // the same in the compute type; o itself in f32 and f64
  Tensor lse;        // (b, h): log-sum-exp of the scores, in the compute type
  Tensor rest = {};  // (b, h): what rounding left off of it; 0 where it is undefined
};
struct TpaGrads {
  Grad aq, ak, av, bq, bk, bv;
};

// Without any tape: what backward needs of forward, and (=|+=) the gradients that are wanted.
TpaOutput tpa_decode_with_lse(const Tensor& aq, const Tensor& ak, const Tensor& av,
                              const Tensor& bq, const Tensor& bk, const Tensor& bv,
                              const TpaOptions& options = {});
void tpa_decode_backward(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                         const Tensor& bk, const Tensor& bv, const TpaOutput& output,
                         const Tensor& d_o, const TpaGrads& d, const TpaOptions& options = {});

}  // namespace detail
}  // namespace quipu
