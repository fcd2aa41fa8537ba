#pragma once
// Reductions, prefix sums and stream compaction by the threads of a block, all in a fixed order.
#include <type_traits>

#include "element.cuh"
#include "quipu/cuda/launch.h"

namespace quipu::detail::on_cuda {

inline constexpr unsigned warp_size = 32, all_lanes = 0xffffffffu;

/// __shfl_xor of a value; classes bring their own from_lane.
template <class V>
__device__ __forceinline__ V from_lane(const V& value, int lanes) {
  if constexpr (std::is_class_v<V>) {
    return value.from_lane(lanes);
  } else {
    return __shfl_xor_sync(all_lanes, value, lanes);
  }
}

/// Reduces over a warp; all lanes get the result. `combine` is commutative.
template <class V, class Combine>
__device__ __forceinline__ V fold_warp(V value, Combine combine) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = combine(value, from_lane(value, lanes));
  }
  return value;
}

/// Reduces over a team, which is one thread, a warp or a whole block; all threads get the result.
/// `scratch` is shared memory, an element a warp, and free again on return.
template <unsigned threads, class V, class Combine>
__device__ __forceinline__ V fold_team(V value, V* scratch, Combine combine) {
  if constexpr (threads > 1) value = fold_warp(value, combine);
  if constexpr (threads > warp_size) {
    constexpr unsigned warps = threads / warp_size;
    if (threadIdx.x % warp_size == 0) scratch[threadIdx.x / warp_size] = value;
    __syncthreads();
    value = scratch[0];
    for (unsigned w = 1; w < warps; ++w) value = combine(value, scratch[w]);
    __syncthreads();
  }
  return value;
}

/// Exclusive prefix sum over a team, and the sum of all in `total`; integers wrap. `scratch` is
/// shared memory, an element a warp, and free again on return.
template <unsigned threads, class T>
__device__ __forceinline__ T sum_before(T value, T* scratch, T& total) {
  if constexpr (threads == 1) {
    total = value;
    return T(0);
  } else {
    constexpr unsigned warps = threads / warp_size;
    const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    for (unsigned distance = 1; distance < warp_size; distance *= 2) {
      const T other = __shfl_up_sync(all_lanes, value, distance);
      if (lane >= distance) value = wrapping_sum(other, value);
    }
    T before = __shfl_up_sync(all_lanes, value, 1);
    if (lane == 0) before = T(0);
    if (lane == warp_size - 1) scratch[warp] = value;
    __syncthreads();
    total = T(0);
    for (unsigned w = 0; w < warps; ++w) {
      if (w == warp) before = wrapping_sum(total, before);
      total = wrapping_sum(total, scratch[w]);
    }
    __syncthreads();
    return before;
  }
}

/// Stream compaction: positions in a list for those threads of a team that have something, in the
/// order of the threads.
struct Slots {
  unsigned own;    // of this thread, if it has something
  unsigned total;  // of the team
};
/// `scratch` is shared memory, an element a warp; consecutive calls alternate between two of them.
template <unsigned threads>
__device__ __forceinline__ Slots slots_in_order(bool has, unsigned* scratch) {
  if constexpr (threads == 1) {
    return {0, has ? 1u : 0u};
  } else {
    constexpr unsigned warps = threads / warp_size;
    const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const unsigned having = __ballot_sync(all_lanes, has);
    if (lane == 0) scratch[warp] = static_cast<unsigned>(__popc(having));
    __syncthreads();
    Slots slots{static_cast<unsigned>(__popc(having & ((1u << lane) - 1u))), 0};
    for (unsigned w = 0; w < warps; ++w) {
      slots.own += w < warp ? scratch[w] : 0u;
      slots.total += scratch[w];
    }
    return slots;
  }
}

}  // namespace quipu::detail::on_cuda
