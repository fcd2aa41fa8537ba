#pragma once
// o (=|+=) scale * sum of f(operands), in the frame of reduce.cuh. Each operand is read once; sums
// are f64 (i64), also those of slices.
#include "pointwise.cuh"
#include "reduce.cuh"

namespace quipu::on_cuda {

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

template <class S>
struct Add {
  __device__ __forceinline__ S operator()(S a, S b) const { return wrapping_sum(a, b); }
};

/// Where sums go: to the output, scaled, or to the slices' scratch.
struct SumTarget {
  Target out;
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
__global__ void __launch_bounds__(block_threads)
    sum_elements(ReducePlan plan, Walk<4> kept, Walk<4> reduced, SumTarget to, Sources<T> in) {
  __shared__ Sum<T> shared[block_threads];
  const ReducePlace place(plan);
  const bool active = place.output < plan.outputs;
  std::int64_t base[4] = {};
  if (active) kept.find(place.output, base);
  Sum<T> sum = 0;
  for (std::uint32_t r = place.begin + place.lane; active && r < place.end; r += plan.lanes()) {
    std::int64_t at[4];
    reduced.find(r, at);
    const T value =
        apply<F>(in.a.at(base[1] + at[1]), in.b.at(base[2] + at[2]), in.c.at(base[3] + at[3]));
    sum = wrapping_sum(sum, static_cast<Sum<T>>(value));
  }
  sum = join_lanes(plan, place, sum, shared, Add<Sum<T>>{});
  if (!active || place.lane != 0) return;
  if (plan.slices > 1) {
    static_cast<Sum<T>*>(to.partials)[std::int64_t{place.slice} * plan.outputs + place.output] =
        sum;
  } else {
    put_sum(to, base[0], sum);
  }
}

template <class T>
using SumKernel = void (*)(ReducePlan, Walk<4> kept, Walk<4> reduced, SumTarget, Sources<T>);

template <class T>
SumKernel<T> sum_kernel_for(Pointwise f);

template <class T>
struct MakeSum {
  template <Pointwise F>
  static SumKernel<T> kernel() {
    return sum_elements<T, F>;
  }
};

}  // namespace quipu::on_cuda
