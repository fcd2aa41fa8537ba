// o (=|+=) scale * sum of f(operands), in the frame of reduce.cuh, for operands of any types and
// strides: those that lie in packs of 16 bytes go by sum_packs.cu. Each operand is read once; sums
// are f64 (i64), also those of slices, which a second kernel adds. Bound by memory.
//
// sass sum_elements: forbid LD.E ST.E; registers 64; shared 2048
// sass add_slices: forbid LD.E ST.E; registers 48; shared 0
#include "quipu/core/dispatch/kernels.h"
#include "sum.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace {

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
void run_elements(const SumCall& call, const Layout<4>& layout) {
  const Queue queue(call.o.view);
  const KeptAndReduced<4>& parts = call.parts;
  const SumKernel<T> kernel = kernel_of<T, MakeSum<T>>(call.f);
  ensure(kernel != nullptr, "pointwise function ", static_cast<int>(call.f),
         " is not summed, or not for whole numbers");
  const ReducePlan plan =
      plan_reduction(numel(parts.kept.shape), numel(parts.reduced.shape), densest_is_reduced(parts),
                     static_cast<std::int64_t>(scratch_bytes / sizeof(Sum<T>)));
  with_slices<Sum<T>>(queue, call, plan.slices, [&](const SumTarget& to) {
    run(queue, kernel, dim3(blocks_for(plan.outputs, plan.outputs_per_block()), plan.slices),
        block_threads, 0, plan, Walk<4>(parts.kept), Walk<4>(parts.reduced), to,
        sources_of<T>(call.in, layout));
  });
}

void run_sum(const SumCall& call, const Layout<4>& layout) {
  constexpr std::int64_t most = (std::int64_t{1} << 31) - 1;
  const std::int64_t outputs = numel(call.parts.kept.shape);
  const std::int64_t reduced = numel(call.parts.reduced.shape);
  check(outputs <= most && reduced <= most, "a sum of ", reduced, " elements for each of ", outputs,
        " results is beyond what device ", call.o.view.device, " can do (2^31 each)");
  if (sum_in_packs(call)) return;
  with_compute_type(pointwise_type(call.in), [&]<class T>(T) { run_elements<T>(call, layout); });
}

void pointwise_sum(Target o, Pointwise f, const Operands& in, const Shape& over, double scale) {
  if (o.view.numel() == 0) return;
  if (numel(over) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Layout<4> layout{over, pointwise_strides(o.view, in, over)};
  run_sum({o, f, in, scale, KeptAndReduced<4>(layout)}, layout);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_reduce_sum() {
  pointwise_sum_kernel.provide(Variant::cuda, on_cuda::pointwise_sum);
}

}  // namespace quipu::detail
