#pragma once
// What both kinds of sums (sum.cu: of elements, sum_packs.cu: of packs of 16 bytes) share.
#include <optional>

#include "quipu/cuda/pointwise/pointwise.cuh"
#include "quipu/cuda/runtime/run.h"
#include "reduce.cuh"

namespace quipu::detail::on_cuda {

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
  void* partials;         // [slice][output], only used with several slices
  std::int64_t step = 0;  // from one sum of a pack to the next
};

template <class S>
__device__ __forceinline__ void put_sum(const SumTarget& to, std::int64_t at, S sum) {
  if (to.scale == 1.0) {
    put_element(to.out.data, to.out.dtype, at, sum, to.out.add);
  } else {
    put_element(to.out.data, to.out.dtype, at, to.scale * static_cast<double>(sum), to.out.add);
  }
}

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

// ---- on the host ----

struct SumCall {
  const Target& o;
  Pointwise f;
  const Operands& in;
  double scale;
  KeptAndReduced<4> parts;
};

/// Calls run_slices(target), and adds what it leaves in several slices of sums of type S.
template <class S, class F>
void with_slices(const Queue& queue, const SumCall& call, std::int64_t slices, F run_slices) {
  std::optional<Scratch> scratch;
  if (slices > 1) scratch.emplace(queue);
  const SumTarget to{{call.o.view.data, call.o.view.dtype, call.o.add},
                     call.scale,
                     scratch ? scratch->data() : nullptr,
                     call.parts.kept.strides[0].back()};
  run_slices(to);
  if (slices == 1) return;
  const auto outputs = static_cast<std::uint32_t>(numel(call.parts.kept.shape));
  run(queue, add_slices<S>, blocks_for(outputs), block_threads, 0, outputs,
      static_cast<std::uint32_t>(slices), Walk<4>(call.parts.kept), to);
}

/// Whether the operands lie densest along a reduced dimension.
inline bool densest_is_reduced(const KeptAndReduced<4>& parts) {
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

/// Sums in packs of 16 bytes; false where operands do not allow them.
bool sum_in_packs(const SumCall& call);

}  // namespace quipu::detail::on_cuda
