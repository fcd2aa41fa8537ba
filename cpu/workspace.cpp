// What the CPU answers when operators ask for its workspace. Most of its kernels need none: their
// tiles lie on the stacks of the threads.
#include "workspace.h"

#include "quipu/ops/act_kernels.h"
#include "quipu/ops/attention_kernels.h"
#include "quipu/ops/flao/kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/norm_kernels.h"
#include "quipu/ops/tpa_decode/kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

/// A single sum is made in its place, unless that would round it again and again.
Shape attention_sums(const AttentionInputs& in, const Grad& d_q) {
  const std::int64_t parts = attention_parts(in.q.size(0), in.k.size(1), in.k.size(2));
  const bool rounded = size_of(d_q.view.dtype) < size_of(compute_type(in.q.dtype));
  if (!d_q.wanted() || (parts == 1 && !rounded)) return {};
  Shape shape = in.q.shape;
  shape.insert(0, parts);
  return shape;
}

/// Of each column the largest entry and the sum, in backward the mean of the gradient, too.
std::int64_t lrpe(const RowTransform& transform, const Shape& x, bool backward) {
  if (!transform.softmax_over_sequence() || numel(x) == 0) return 0;
  return lrpe_columns(x[0], x[2], backward).slots() * (backward ? 3 : 2) * x[1] * x[3];
}

std::int64_t lrpe_theta(LrpeKind kind, const Shape& x) {
  return lrpe_theta_parts(x[1], x[2]) * x[1] * angles_of(kind, x[3]);
}

Shape tpa_forward(const TpaSizes& s, bool split) {
  const TpaBlocks blocks = tpa_blocks(s.b, s.m, split);
  return blocks.count > 1 ? Shape{s.b, blocks.count, s.h, s.e + 2} : Shape{};
}
Shape tpa_backward(const TpaSizes& s, bool split) {
  return {s.b, tpa_blocks(s.b, s.m, split).count, s.h * s.r + s.r * s.d};
}

}  // namespace
}  // namespace on_cpu

void register_cpu_workspace() {
  constexpr DeviceKind cpu = DeviceKind::cpu;
  softmax_workspace.provide(cpu, [](std::int64_t, std::int64_t, std::int64_t) { return Shape{0}; });
  lrpe_workspace.provide(cpu, on_cpu::lrpe);
  lrpe_theta_workspace.provide(cpu, on_cpu::lrpe_theta);
  flao_backward_reads_qkv.provide(
      cpu, [](const FlaoSizes&, const FlaoTransforms&, DType) { return true; });
  flao_forward_workspace.provide(
      cpu, [](const FlaoSizes&, const FlaoTransforms&, DType) -> std::int64_t { return 0; });
  flao_backward_workspace.provide(
      cpu, [](const FlaoSizes&, const FlaoTransforms&, bool, bool) -> std::int64_t { return 0; });
  index_add_workspace.provide(cpu, [](const View&, const View&, int) -> std::int64_t { return 0; });
  matmul_workspace.provide(cpu, [](std::int64_t, std::int64_t) -> std::int64_t { return 0; });
  matmul_parts.provide(cpu, on_cpu::matmul_parts);
  matmul_reaches.provide(cpu, [](const View&, const View&, const View&) { return true; });
  matmul_buffer_type.provide(cpu, [](const View&, const View& o) { return compute_type(o.dtype); });
  attention_forward_workspace.provide(cpu, [](const AttentionInputs&) { return Shape{}; });
  attention_backward_workspace.provide(cpu, [](const AttentionInputs& in, const Grad&) {
    return in.q.size(0) * in.q.size(1) * in.q.size(2);
  });
  attention_partial_sums.provide(cpu, on_cpu::attention_sums);
  norm_backward_parts.provide(
      cpu, [](std::int64_t outer, std::int64_t) { return on_cpu::norm_parts(outer); });
  tpa_forward_workspace.provide(cpu, on_cpu::tpa_forward);
  tpa_backward_workspace.provide(cpu, on_cpu::tpa_backward);
}

}  // namespace quipu::detail
