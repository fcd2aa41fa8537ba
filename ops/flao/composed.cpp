// Gated linear attention from smaller operators. q~, k~, v~, g~, kv and q~ kv are whole tensors,
// rounded to the type of the inputs.
#include "quipu/ops/flao/flao.h"
#include "quipu/ops/lrpe/lrpe.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/pointwise/arithmetic.h"

namespace quipu {
using namespace detail;
namespace {

/// lrpe_* in one dimension have the heads behind the tokens.
Tensor encode_1d(Tensor (*lrpe)(const Tensor&, const Tensor&, const LrpeOptions&), const Tensor& y,
                 const FlaoOptions& options, std::int64_t offset) {
  return lrpe(y.transpose(1, 2), options.theta, {.offset = offset}).transpose(1, 2);
}

Tensor encode(const Tensor& y, const FlaoOptions& options, std::int64_t offset) {
  switch (options.lrpe) {
    case FlaoLrpe::rotate: return encode_1d(lrpe_rotate_composed, y, options, offset);
    case FlaoLrpe::cosine: return encode_1d(lrpe_cosine_composed, y, options, offset);
    case FlaoLrpe::cosine_md:
      return lrpe_cosine_md_composed(y, options.theta, options.shape, {.l = options.l});
    case FlaoLrpe::none: break;
  }
  return y;
}

}  // namespace

Tensor detail::flao_composed(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const FlaoOptions& options) {
  check_enum("lrpe", options.lrpe, FlaoLrpe::cosine_md);
  const Tensor q_row =
      encode(act_composed(q, options.q_act, options.q_dim), options, options.offset);
  const Tensor k_row = encode(act_composed(k, options.k_act, options.k_dim), options, 0);
  const Tensor kv = matmul(k_row.t(), act_composed(v, options.v_act, options.v_dim));
  return act_composed(g, options.g_act, options.g_dim) * matmul(q_row, kv);
}

}  // namespace quipu
