// What the CUDA back end answers when operators ask for its workspace (cuda/workspace.h).
#include "workspace.h"

#include "quipu/cuda/attention/blocks.h"
#include "quipu/cuda/index/row_adds.h"
#include "quipu/ops/act_kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/norm_kernels.h"
#include "quipu/ops/tpa_decode/kernels.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

Shape softmax(std::int64_t lines, std::int64_t length, std::int64_t quantities) {
  const std::int64_t parts = softmax_parts(lines, length);
  return {parts > 1 ? parts : 0, quantities, lines};
}

/// What is found of the columns of each part: maximum and sum, in backward the mean, too.
std::int64_t lrpe(const RowTransform& transform, const Shape& shape, bool backward) {
  const std::int64_t columns = shape[0] * shape[1] * shape[3];
  const std::int64_t parts = lrpe_parts(columns, shape[2]);
  if (!transform.softmax_over_sequence() || parts == 1) return 0;
  return parts * columns * (backward ? 3 : 2);
}

/// The sums of parts of a head.
std::int64_t lrpe_theta(LrpeKind kind, const Shape& x) {
  const std::int64_t angles = angles_of(kind, x[3]);
  return lrpe_theta_parts(x[1], angles, x[2]) * x[1] * angles;
}

/// What softmax over the sequence keeps of an input with so many tokens and features: of each
/// column of a unit its largest entry, the inverse of its sum, the mean of its gradient; and two
/// numbers for each of its parts. 0 for other encodings.
std::int64_t flao_columns(const RowTransform& transform, std::int64_t units, std::int64_t tokens,
                          std::int64_t features) {
  return transform.softmax_over_sequence() ? (3 + 2 * flao_parts(tokens, units)) * units * features
                                           : 0;
}
std::int64_t flao_columns(const FlaoSizes& s, const FlaoTransforms& transforms) {
  return flao_columns(transforms.q, s.units, s.n, s.d) +
         flao_columns(transforms.k, s.units, s.m, s.d) +
         flao_columns(transforms.v, s.units, s.m, s.e) +
         flao_columns(transforms.g, s.units, s.n, s.e);
}
/// First the sums of parts, unless they lie in o, then the columns of q, k, v and g.
std::int64_t flao_forward(const FlaoSizes& s, const FlaoTransforms& transforms, DType dtype) {
  return flao_sum_space(s, false, !flao_sums_fit_output(s, dtype)) + flao_columns(s, transforms);
}
/// The sums over keys and then those over queries, one after the other in the same place.
std::int64_t flao_backward(const FlaoSizes& s, const FlaoTransforms& transforms, bool over_queries,
                           bool over_keys) {
  return flao_sum_space(s, over_queries, over_keys) + flao_columns(s, transforms);
}

/// Tensor cores compute q~ kv again, sooner than it could be loaded.
bool flao_reads_qkv(const FlaoSizes& s, const FlaoTransforms& transforms, DType dtype) {
  return !flao_suits_tensor_cores(s, transforms, dtype);
}

/// As much as 32 parts of the sums of a small result take: that is how cuBLAS splits long sums. No
/// less than without which some of its routines fail, and no more than it recommends for any card
/// (32 MiB from sm_90 on).
std::int64_t matmul(std::int64_t m, std::int64_t n) {
  constexpr std::int64_t least = std::int64_t{16} << 10, most = std::int64_t{32} << 20;
  constexpr std::int64_t of_element = 32 * 4;
  if (m <= 0 || n <= 0) return 0;
  return m > most / n ? most : std::clamp(m * n * of_element, least, most);
}
/// cuBLAS has no results wider than f32 from narrower operands, and rounds each of several products
/// that are summed.
bool reaches(const View& a, const View& b, const View& o) {
  if (o.dtype != a.dtype && !(is_reduced(a.dtype) && o.dtype == DType::f32)) return false;
  for (int d = 0; d + 2 < o.dim(); ++d) {
    if (is_reduced(o.dtype) && o.size(d) == 1 && std::max(a.size(d), b.size(d)) > 1) return false;
  }
  return true;
}

Shape attention_forward(const AttentionInputs& in) {
  const TpaBlocks blocks = attention_blocks(in);
  const std::int64_t heads = in.k.size(1);
  if (blocks.count == 1 || heads == 0) return {};
  return {in.q.size(0) * heads, blocks.count, in.q.size(1) / heads * in.q.size(2),
          in.v.size(3) + 2};
}

std::int64_t attention_backward(const AttentionInputs& in, const Grad& d_q) {
  return attention_space(in, d_q.wanted()).end;
}

std::int64_t index_add(const View& o, const View& x, int axis) {
  const std::int64_t entries = x.size(axis), lines = entries > 0 ? x.numel() / entries : 0;
  return RowAdds(lines, entries, o.size(axis)).bytes(entries, o.dtype);
}

Shape tpa_forward(const TpaSizes& s, bool split) {
  const TpaBlocks blocks = tpa_blocks(s.b, s.m, split);
  return blocks.count > 1 ? Shape{s.b, blocks.count, s.h, s.e + 2} : Shape{};
}
Shape tpa_backward(const TpaSizes& s, bool split) {
  return {s.b, tpa_blocks(s.b, s.m, split).count, s.h * s.r + s.r * s.d};
}

}  // namespace
}  // namespace on_cuda

void register_cuda_workspace() {
  constexpr DeviceKind cuda = DeviceKind::cuda;
  softmax_workspace.provide(cuda, on_cuda::softmax);
  lrpe_workspace.provide(cuda, on_cuda::lrpe);
  lrpe_theta_workspace.provide(cuda, on_cuda::lrpe_theta);
  flao_forward_workspace.provide(cuda, on_cuda::flao_forward);
  flao_backward_workspace.provide(cuda, on_cuda::flao_backward);
  flao_backward_reads_qkv.provide(cuda, on_cuda::flao_reads_qkv);
  index_add_workspace.provide(cuda, on_cuda::index_add);
  matmul_workspace.provide(cuda, on_cuda::matmul);
  matmul_parts.provide(cuda, [](std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
    return std::int64_t{1};  // cuBLAS and our own kernels cut sums themselves
  });
  matmul_reaches.provide(cuda, on_cuda::reaches);
  matmul_buffer_type.provide(cuda,
                             [](const View& a, const View&) { return compute_type(a.dtype); });
  attention_forward_workspace.provide(cuda, on_cuda::attention_forward);
  attention_backward_workspace.provide(cuda, on_cuda::attention_backward);
  attention_partial_sums.provide(cuda,  // every gradient of q is one sum
                                 [](const AttentionInputs&, const Grad&) { return Shape{}; });
  norm_backward_parts.provide(cuda, on_cuda::norm_parts);
  tpa_forward_workspace.provide(cuda, on_cuda::tpa_forward);
  tpa_backward_workspace.provide(cuda, on_cuda::tpa_backward);
}

}  // namespace quipu::detail
