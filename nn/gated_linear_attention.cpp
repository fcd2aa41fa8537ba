#include "quipu/nn/gated_linear_attention.h"

#include <numbers>

#include "quipu/nn/width.h"
#include "quipu/ops/norm.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

/// Angles of one grid axis, spread over (0, pi).
Tensor spread_angles(std::int64_t count, const Place& place) {
  const double step = std::numbers::pi / static_cast<double>(count);
  std::vector<double> angles;
  for (std::int64_t i = 0; i < count; ++i) {
    angles.push_back((static_cast<double>(i) + 0.5) * step);
  }
  return from(angles, {1, count}, compute_type(place.dtype), place.device);
}

}  // namespace

GatedLinearAttention::GatedLinearAttention(std::int64_t features,
                                           const GatedLinearAttentionOptions& wanted,
                                           const Place& place)
    : options(wanted) {
  const std::int64_t heads = options.heads, axes = options.grid.size();
  check_width("GatedLinearAttention: features", features);
  check(heads > 0 && features > 0 && features % heads == 0, "GatedLinearAttention: ", features,
        " features do not fall into ", heads, " equal heads");
  check(axes > 0, "GatedLinearAttention: the grid has no axes; a plain sequence of n is {n}");
  const std::int64_t head = features / heads;
  qkvg = Linear(features, 4 * features, {.bias = false}, place);
  out = Linear(features, features, {.bias = false}, place);
  norm = RMSNorm(head, place);
  theta = make_buffer(spread_angles((head + axes - 1) / axes, place));
}

Tensor GatedLinearAttention::operator()(const Tensor& x) const {
  const MemoryScope named = scope();
  check(x.dim() == 3, "GatedLinearAttention: x has shape ", x.shape(),
        ", but (b, n, features) is wanted");
  const std::int64_t b = x.size(0), n = x.size(1), features = x.size(2), heads = options.heads;
  const Tensor all = qkvg(x).view({b, n, 4, heads, features / heads}).permute({2, 0, 3, 1, 4});
  const Tensor o = flao(all[0], all[1], all[2], all[3],
                        {.q_act = Act::silu,
                         .k_act = Act::silu,
                         .g_act = Act::sigmoid,
                         .lrpe = FlaoLrpe::cosine_md,
                         .theta = theta,
                         .shape = options.grid,
                         .l = options.lead,
                         .keep = options.keep});
  // The norm takes the division by n away again, but for its eps: dividing costs nothing there.
  const double eps = norm.eps * static_cast<double>(n * n);
  const Tensor rows = rms_norm(o.transpose(1, 2), norm.weight, eps);
  return out(rows.reshape({b, n, features}));
}

}  // namespace quipu::nn
