#pragma once
// flao: linear attention with an output gate, not causal, with activations and position encodings
// fused in:
//   o = g~ * (q~ (k~^T v~))
// where x~ is x with its activation and, for q and k, its position encoding (ops/lrpe/lrpe.h). The
// d' x e matrix k~^T v~ is formed first, so time and memory grow with the length of the sequence,
// not with its square. Linear attention: Katharopoulos et al. 2020, arXiv:2006.16236; with a gate
// in the place of the denominator: Qin et al. 2023, arXiv:2307.14995.
#include <optional>

#include "quipu/core/tensor.h"
#include "quipu/ops/act.h"

namespace quipu {

/// Position encoding of q and k, as the operators lrpe_* of these names do it.
enum class FlaoLrpe : std::uint8_t { none, rotate, cosine, cosine_md };

/// What is saved for backward beside the inputs that it needs; the rest is computed again.
enum class FlaoKeep : std::uint8_t {
  nothing,
  kv,         // k~^T v~, (b, h, d', e), in f32 (f64 for f64)
  kv_and_qkv  // and q~ kv, (b, h, n, e), in the type of q; tensor cores never read it: then not
};

/// What is fused into flao, and what it keeps. The default is g * (q (k^T v)).
struct FlaoOptions {
  // Activations. Softmax needs a dim: -1 for the features, -2 for the sequence; the others take
  // none.
  Act q_act = Act::none;
  std::optional<int> q_dim = {};
  Act k_act = Act::none;
  std::optional<int> k_dim = {};
  Act v_act = Act::none;
  std::optional<int> v_dim = {};
  Act g_act = Act::none;
  std::optional<int> g_dim = {};

  FlaoLrpe lrpe = FlaoLrpe::none;  // of q and k; all but none need theta
  Tensor theta = {};               // (h or 1, angles), as for lrpe_*
  std::int64_t offset = 0;         // position of the first query; keys begin at 0
  Shape shape = {};                // of the grid and
  std::int64_t l = 0;              // tokens before it, for cosine_md, where n = m = l + prod(shape)

  FlaoKeep keep = FlaoKeep::nothing;  // more memory, less time in backward
};

/// g~ * (q~ (k~^T v~)), where x~ is x with its activation and, for q and k, its position encoding.
///
/// q (b, h, n, d), k (b, h, m, d), v (b, h, m, e), g (b, h, n, e) -> (b, h, n, e), all of one
/// floating type. e and the features of an encoded row (d, or 2d for cosine) are at most 1024, 512
/// in f64. Products are summed in f32 (f64 for f64) and rounded once. Backward needs q, k, v, g and
/// theta, fewer if only some of them want gradients; `keep` trades memory for time. If theta wants
/// a gradient, backward holds that of q~ and then that of k~ for a moment, in the compute type.
Tensor flao(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
            const FlaoOptions& options = {});

namespace detail {

/// The same from smaller operators: the oracle of the tests and the baseline of the benchmarks.
/// `keep` has no effect.
Tensor flao_composed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const FlaoOptions& options = {});

/// Without any tape: each gradient that is wanted (=|+=), none of theta. `keep` has no effect.
void flao_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                   const Tensor& d_o, const Grad& d_q, const Grad& d_k, const Grad& d_v,
                   const Grad& d_g, const FlaoOptions& options = {});

}  // namespace detail
}  // namespace quipu
