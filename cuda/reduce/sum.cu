// o (=|+=) scale * sum of f(operands), in the frame of reduce.cuh. Each operand is read once; sums
// are f64 (i64), also those of slices, which a second kernel adds. Bound by memory.
//
// sass sum_elements: forbid LD.E ST.E; registers 64; shared 2048
// sass add_slices: forbid LD.E ST.E; registers 48; shared 0
#include <optional>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "reduce.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

template <class S>
struct Add {
  __device__ __forceinline__ S operator()(S a, S b) const { return wrapping_sum(a, b); }
};

/// Where sums go: to the output, scaled, or to the slices' scratch.
struct SumTarget {
  Output out;
  double scale;
  void* partials;  // [slice][output], only used with several slices
};

template <class S>
__device__ __forceinline__ void put_sum(const SumTarget& to, std::int64_t at, S sum) {
  if (to.scale == 1.0) {
    put_element(to.out.data, to.out.dtype, at, sum, to.out.add);
  } else {
    put_element(to.out.data, to.out.dtype, at, to.scale * static_cast<double>(sum), to.out.add);
  }
}

template <class T, Pointwise F>
__global__ void __launch_bounds__(block_threads, 1)
    sum_elements(ReducePlan plan, Walk<4> kept, Walk<4> reduced, SumTarget to, Sources<T> in) {
  __shared__ Sum<T> shared[block_threads];
  const ReduceThread self(plan);
  const bool active = self.output < plan.outputs;
  std::int64_t base[4] = {};
  if (active) kept.find(self.output, base);
  Sum<T> sum = 0;
  for (std::uint32_t r = self.begin + self.lane; active && r < self.end; r += plan.lanes()) {
    std::int64_t at[4];
    reduced.find(r, at);
    const T value =
        apply<F>(in.a.at(base[1] + at[1]), in.b.at(base[2] + at[2]), in.c.at(base[3] + at[3]));
    sum = wrapping_sum(sum, static_cast<Sum<T>>(value));
  }
  sum = join_lanes(plan, self, sum, shared, Add<Sum<T>>{});
  if (!active || self.lane != 0) return;
  if (plan.slices > 1) {
    static_cast<Sum<T>*>(to.partials)[std::int64_t{self.slice} * plan.outputs + self.output] = sum;
  } else {
    put_sum(to, base[0], sum);
  }
}

template <class T>
using SumKernel = void (*)(ReducePlan, Walk<4> kept, Walk<4> reduced, SumTarget, Sources<T>);

/// One thread an output; slices are added in their order.
template <class S>
__global__ void __launch_bounds__(block_threads, 1)
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
struct MakeSum {
  template <Pointwise F>
  static SumKernel<T> kernel() {
    if constexpr (traits_of(F).summed) {
      return sum_elements<T, F>;
    } else {
      return nullptr;
    }
  }
};

template <class T>
void run_sum(const Target& o, Pointwise f, const Operands& in, const Layout<4>& layout,
             double scale) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  const Queue queue(o.view);
  const KeptAndReduced<4> parts(layout);
  const std::int64_t outputs = numel(parts.kept.shape), reduced = numel(parts.reduced.shape);
  check(outputs <= most && reduced <= most, "a sum of ", reduced, " elements for each of ", outputs,
        " results is beyond what device ", o.view.device, " can do (2^31 each)");
  const SumKernel<T> kernel = kernel_of<T, MakeSum<T>>(f);
  ensure(kernel != nullptr, "pointwise function ", static_cast<int>(f),
         " is not summed, or not for whole numbers");
  const ReducePlan plan = plan_reduction(outputs, reduced, densest_is_reduced(parts),
                                         static_cast<std::int64_t>(scratch_bytes / sizeof(Sum<T>)));
  std::optional<Scratch> scratch;
  if (plan.slices > 1) scratch.emplace(queue);
  const SumTarget to{
      {o.view.data, o.view.dtype, o.add}, scale, scratch ? scratch->data() : nullptr};
  const Walk<4> kept(parts.kept);
  run(queue, kernel, dim3(blocks_for(outputs, plan.outputs_per_block()), plan.slices),
      block_threads, 0, plan, kept, Walk<4>(parts.reduced), to, sources_of<T>(in, layout));
  if (plan.slices == 1) return;
  run(queue, add_slices<Sum<T>>, blocks_for(outputs), block_threads, 0, plan.outputs, plan.slices,
      kept, to);
}

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Layout<4> layout{over, pointwise_strides(o.view, in, over)};
  with_compute_type(pointwise_type(in), [&]<class T>(T) { run_sum<T>(o, f, in, layout, scale); });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_reduce_sum() {
  pointwise_sum_kernel.provide(Variant::cuda, on_cuda::pointwise_sum);
}

}  // namespace quipu::detail
