#pragma once
// The frame of reductions: outputs are kept positions, each the sum over reduced positions. A block
// works on several outputs, with `lanes` threads for each of them; either the lanes of an output or
// the outputs are neighbours in a warp, whichever gives coalesced loads. Where there are few
// outputs, their reduced positions are split into slices (split-K), whose partial results go
// through the stream's scratch memory to a second kernel. Every split follows from the shape, every
// order of adding is fixed: same bits on every run. Bound by memory.
#include "quipu/core/error.h"
#include "quipu/cuda/tile/geometry.h"

namespace quipu::detail::on_cuda {

/// For every GPU of today and of some years to come.
inline constexpr std::int64_t enough_blocks = 512;

/// How a reduction is split among threads.
struct ReducePlan {
  std::uint32_t outputs = 1, reduced = 1;  // how many positions of each kind
  std::uint32_t slices = 1;
  int lane_bits = 0;         // log2 of the threads that work on one output
  bool lanes_first = false;  // neighbouring threads work on one output

  __host__ __device__ unsigned lanes() const { return 1u << lane_bits; }
  __host__ __device__ unsigned outputs_per_block() const { return block_threads >> lane_bits; }
};

/// A thread: one of `lanes` on one output of a slice.
struct ReduceThread {
  __device__ __forceinline__ explicit ReduceThread(const ReducePlan& plan) {
    const unsigned thread = threadIdx.x;
    lane = plan.lanes_first ? thread & (plan.lanes() - 1) : thread / plan.outputs_per_block();
    column = plan.lanes_first ? thread >> plan.lane_bits : thread & (plan.outputs_per_block() - 1);
    output = blockIdx.x * plan.outputs_per_block() + column;
    slice = blockIdx.y;
    begin = static_cast<std::uint32_t>(std::uint64_t{plan.reduced} * slice / plan.slices);
    end = static_cast<std::uint32_t>(std::uint64_t{plan.reduced} * (slice + 1) / plan.slices);
  }
  unsigned lane, column, slice;
  std::uint32_t output, begin, end;
};

/// Reduces over the lanes of each output in a fixed tree; lane 0 gets the result. All threads of
/// the block call it. `shared` has block_threads entries.
template <class S, class Join>
__device__ __forceinline__ S join_lanes(const ReducePlan& plan, const ReduceThread& self, S value,
                                        S* shared, Join join) {
  const unsigned step = plan.lanes_first ? 1 : plan.outputs_per_block();  // between lanes
  shared[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = plan.lanes() / 2; half > 0; half /= 2) {
    if (self.lane < half) {
      value = join(value, shared[threadIdx.x + half * step]);
      shared[threadIdx.x] = value;
    }
    __syncthreads();
  }
  return value;
}

/// The plan for a shape. `lanes_first` if memory is densest along reduced dimensions; the scratch
/// holds `most_partials` partial results. Positions may be packs of 16 bytes.
inline ReducePlan plan_reduction(std::int64_t outputs, std::int64_t reduced, bool lanes_first,
                                 std::int64_t most_partials, bool in_packs = false) {
  const std::int64_t per_lane = in_packs ? 4 : 8;  // positions at least, else fewer lanes do
  ReducePlan plan;
  plan.outputs = static_cast<std::uint32_t>(outputs);
  plan.reduced = static_cast<std::uint32_t>(reduced);
  plan.lanes_first = lanes_first;
  // 32 outputs side by side, or 8 packs, fill the lines of memory.
  const int most_bits = lanes_first ? 8 : in_packs ? 5 : 3;
  const int few_outputs = std::bit_width(static_cast<std::uint64_t>(outputs - 1));
  const int least_bits = std::max(0, 8 - few_outputs);  // no more threads than there are outputs
  while (plan.lane_bits < most_bits && reduced > per_lane << plan.lane_bits) ++plan.lane_bits;
  plan.lane_bits = std::max(plan.lane_bits, std::min(least_bits, 8));
  const std::int64_t blocks = (outputs + plan.outputs_per_block() - 1) / plan.outputs_per_block();
  const std::int64_t wanted = enough_blocks / blocks;
  const std::int64_t possible =
      std::min(reduced / (per_lane * 4 << plan.lane_bits), most_partials / outputs);
  plan.slices =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(std::min(wanted, possible), 1, 65535));
  return plan;
}

/// A layout split into kept dimensions, where the first view has a stride, and reduced ones.
template <int N>
struct KeptAndReduced {
  explicit KeptAndReduced(const Layout<N>& layout) {
    for (int d = 0; d < layout.shape.size(); ++d) {
      Layout<N>& part = layout.strides[0][d] != 0 ? kept : reduced;
      part.shape.push_back(layout.shape[d]);
      for (std::size_t v = 0; v < N; ++v) part.strides[v].push_back(layout.strides[v][d]);
    }
    kept = kept.merged();
    reduced = reduced.merged(false);
  }
  Layout<N> kept, reduced;
};

}  // namespace quipu::detail::on_cuda
