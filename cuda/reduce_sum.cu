// o (=|+=) scale * sum of f(operands): which positions are kept and which are summed, and the
// kernel that adds the slices of a sum. It is bound by the scratch memory that it reads.
#include "reduce_sum.cuh"

#include "quipu/core/kernels.h"
#include "runtime/run.h"

namespace quipu {
namespace on_cuda {
namespace {

/// One thread an output; slices are added in their order.
template <class S>
__global__ void __launch_bounds__(block_threads)
    add_slices(std::uint32_t outputs, std::uint32_t slices, Walk<4> kept, SumTarget to) {
  const std::uint32_t output = blockIdx.x * block_threads + threadIdx.x;
  if (output >= outputs) return;
  S sum = 0;
  for (std::uint32_t slice = 0; slice < slices; ++slice) {
    sum = wrapping_sum(sum,
                       static_cast<const S*>(to.partials)[std::int64_t{slice} * outputs + output]);
  }
  std::int64_t at[4];
  kept.find(output, at);
  put_sum(to, at[0], sum);
}

/// Whether the operands lie densest along a reduced dimension.
bool densest_is_reduced(const KeptAndReduced<4>& parts) {
  const auto densest = [](const Layout<4>& part) {
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int d = 0; d < part.shape.size(); ++d) {
      std::int64_t stride = 0;
      for (std::size_t v = 1; v < 4; ++v) stride += std::abs(part.strides[v][d]);
      if (part.shape[d] > 1) best = std::min(best, stride);
    }
    return best;
  };
  return densest(parts.reduced) <= densest(parts.kept);
}

template <class T>
void run_sum(const Grad& o, Pointwise f, const Operands& in, const Layout<4>& layout,
             double scale) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  const Queue queue(o.view);
  const KeptAndReduced<4> parts(layout);
  const std::int64_t outputs = numel(parts.kept.shape), reduced = numel(parts.reduced.shape);
  check(outputs <= most && reduced <= most, "a sum of ", reduced, " elements for each of ", outputs,
        " results is beyond what device ", o.view.device, " can do (2^31 each)");
  const SumKernel<T> kernel = sum_kernel_for<T>(f);
  ensure(kernel != nullptr, "pointwise function ", static_cast<int>(f),
         " has no whole-number version");
  const ReducePlan plan = plan_reduction(outputs, reduced, densest_is_reduced(parts),
                                         static_cast<std::int64_t>(scratch_bytes / sizeof(Sum<T>)));
  const SumTarget to{
      {o.view.data, o.view.dtype, o.add}, scale, plan.slices > 1 ? queue.scratch() : nullptr};
  const Walk<4> kept(parts.kept);
  run(queue, kernel, dim3(blocks_for(outputs, plan.outputs_per_block()), plan.slices),
      block_threads, 0, plan, kept, Walk<4>(parts.reduced), to, sources_of<T>(in, layout));
  if (plan.slices == 1) return;
  run(queue, add_slices<Sum<T>>, blocks_for(outputs), block_threads, 0, plan.outputs, plan.slices,
      kept, to);
}

void pointwise_sum(Grad o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Layout<4> layout = pointwise_layout(o.view, in, over);
  with_compute_type(pointwise_type(in), [&]<class T>(T) { run_sum<T>(o, f, in, layout, scale); });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_reduce_sum() {
  pointwise_sum_kernel.provide(DeviceKind::cuda, on_cuda::pointwise_sum);
}

}  // namespace quipu
