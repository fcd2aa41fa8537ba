#pragma once
// What the threads of a block do together: sums and other folds in a fixed order, and slots in the
// order of the threads.
#include <type_traits>

#include "element.cuh"
#include "launch.h"

namespace quipu::on_cuda {

inline constexpr unsigned warp_size = 32, all_lanes = 0xffffffffu;

/// The value of the lane whose number differs in the bits of `lanes`. Structures do it themselves.
template <class V>
__device__ __forceinline__ V from_lane(const V& value, int lanes) {
  if constexpr (std::is_class_v<V>) {
    return value.from_lane(lanes);
  } else {
    return __shfl_xor_sync(all_lanes, value, lanes);
  }
}

/// The fold of a value of every lane, in all lanes. `combine` is commutative.
template <class V, class Combine>
__device__ __forceinline__ V fold_warp(V value, Combine combine) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    value = combine(value, from_lane(value, lanes));
  }
  return value;
}

/// The fold of a value of every thread, in all threads; a team is one thread, a warp or a whole
/// block. `room` is shared and has a place for each warp; it is free again when the fold returns.
template <unsigned threads, class V, class Combine>
__device__ __forceinline__ V fold_team(V value, V* room, Combine combine) {
  if constexpr (threads > 1) value = fold_warp(value, combine);
  if constexpr (threads > warp_size) {
    constexpr unsigned warps = threads / warp_size;
    if (threadIdx.x % warp_size == 0) room[threadIdx.x / warp_size] = value;
    __syncthreads();
    value = room[0];
    for (unsigned w = 1; w < warps; ++w) value = combine(value, room[w]);
    __syncthreads();
  }
  return value;
}

/// The sum of the values of all threads before this one, and that of the block in `total`; whole
/// numbers wrap. `room` is shared and has a place for each warp; it is free again afterwards.
template <unsigned threads, class T>
__device__ __forceinline__ T sum_before(T value, T* room, T& total) {
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
    if (lane == warp_size - 1) room[warp] = value;
    __syncthreads();
    total = T(0);
    for (unsigned w = 0; w < warps; ++w) {
      if (w == warp) before = wrapping_sum(total, before);
      total = wrapping_sum(total, room[w]);
    }
    __syncthreads();
    return before;
  }
}

/// Places in a list for those threads of a team that have something, in the order of the threads.
struct Slots {
  unsigned own;    // of this thread, if it has something
  unsigned total;  // of the team
};
/// `room` is shared, a place for each warp; consecutive calls alternate between two of them.
template <unsigned threads>
__device__ __forceinline__ Slots slots_in_order(bool has, unsigned* room) {
  if constexpr (threads == 1) {
    return {0, has ? 1u : 0u};
  } else {
    constexpr unsigned warps = threads / warp_size;
    const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
    const unsigned having = __ballot_sync(all_lanes, has);
    if (lane == 0) room[warp] = static_cast<unsigned>(__popc(having));
    __syncthreads();
    Slots slots{static_cast<unsigned>(__popc(having & ((1u << lane) - 1u))), 0};
    for (unsigned w = 0; w < warps; ++w) {
      slots.own += w < warp ? room[w] : 0u;
      slots.total += room[w];
    }
    return slots;
  }
}

}  // namespace quipu::on_cuda
