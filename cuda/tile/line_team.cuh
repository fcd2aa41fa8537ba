#pragma once
// Which threads of a block have which lines (columns side by side, or rows), reductions over the
// threads of a line, and launch shapes for rows that are held in registers.
#include <algorithm>
#include <bit>
#include <cstdint>

#include "block.cuh"
#include "geometry.h"

namespace quipu::detail::on_cuda {

inline constexpr unsigned most_threads = 512;

/// What elements of type E are computed in.
template <class E>
using ComputeOf = std::conditional_t<is_reduced_v<E>, float, E>;

/// A thread's line and its member number among the threads of that line. A block has whole warps.
struct LineTeam {
  unsigned lines;                 // positions side by side in a block
  unsigned members;               // threads of each
  unsigned line, member;          // of this thread
  unsigned lanes_from, lanes_to;  // shuffle distances between threads of one line
  bool across_warps;

  /// Columns: `count` positions side by side, a power of two up to 32; neighbouring threads are on
  /// neighbouring positions.
  __device__ __forceinline__ static LineTeam columns(unsigned count) {
    const int bits = __ffs(static_cast<int>(count)) - 1;
    return {count, blockDim.x >> bits, threadIdx.x & (count - 1), threadIdx.x >> bits,
            count, warp_size,          blockDim.x > warp_size};
  }
  /// Rows: `count` neighbouring threads to each, a power of two up to 32 or the whole block.
  __device__ __forceinline__ static LineTeam rows(unsigned count) {
    if (count > warp_size) return {1, count, 0, threadIdx.x, 1, warp_size, true};
    const int bits = __ffs(static_cast<int>(count)) - 1;
    return {
        blockDim.x >> bits, count, threadIdx.x >> bits, threadIdx.x & (count - 1), 1, count, false};
  }

  /// Numbers in shared memory that a fold of s values a thread needs.
  __host__ __device__ static constexpr unsigned fold_size(unsigned threads, unsigned count, int s) {
    return threads / warp_size * count * static_cast<unsigned>(s);
  }

  /// Reduces the s-th values of all members of a line, for each s; all members get the result. All
  /// threads of the block call it. `scratch` is shared memory, fold_size(blockDim.x, lines, S)
  /// numbers, which the next fold must not use. Rows within a warp need none.
  template <int S, class T, class Combine>
  __device__ __forceinline__ void fold(T (&values)[S], T* scratch, Combine combine) const {
    for (unsigned lanes = lanes_from; lanes < lanes_to; lanes *= 2) {
      for (int s = 0; s < S; ++s) {
        values[s] = combine(values[s], __shfl_xor_sync(all_lanes, values[s], lanes));
      }
    }
    if (!across_warps) return;
    const unsigned warps = blockDim.x / warp_size, warp = threadIdx.x / warp_size;
    const unsigned width = lines * S;
    if (threadIdx.x % warp_size < lines) {
      for (int s = 0; s < S; ++s) scratch[warp * width + s * lines + line] = values[s];
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
      T total = scratch[i];
      for (unsigned w = 1; w < warps; ++w) total = combine(total, scratch[w * width + i]);
      scratch[i] = total;
    }
    __syncthreads();
    for (int s = 0; s < S; ++s) values[s] = scratch[s * lines + line];
  }
};

struct Larger {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return max(a, b);  // NaN loses; the sums will have it
  }
};
struct Plus {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// ---- on the host ----

/// A launch shape: threads of a block, and the argument of LineTeam (positions side by side, or
/// threads of a row).
struct LineCut {
  unsigned threads = 0, together = 0;
  bool fits = false;
};

/// The smallest power of two from n on, at most a warp.
inline unsigned power_above(std::int64_t n) {
  return std::bit_ceil(static_cast<unsigned>(std::clamp<std::int64_t>(n, 1, warp_size)));
}
/// `threads` rounded up to whole warps; `together` 0 stands for all of them.
inline LineCut in_whole_warps(std::int64_t threads, std::int64_t together) {
  const std::int64_t whole = (threads + warp_size - 1) / warp_size * warp_size;
  const auto count = static_cast<unsigned>(std::min<std::int64_t>(whole, most_threads));
  return {count, together > 0 ? static_cast<unsigned>(together) : count, whole <= most_threads};
}

inline constexpr std::int64_t sector_packs = 2;  // packs of 16 bytes: a sector

/// For rows of `packs` packs of which a thread holds at most `most`: a warp or part of one has a
/// short row, a block a long one.
inline LineCut held_rows(std::int64_t packs, std::int64_t most) {
  const std::int64_t threads = std::max((packs + most - 1) / most, std::min(packs, sector_packs));
  if (threads <= warp_size) return {block_threads, power_above(threads), true};
  return in_whole_warps(threads, 0);
}

}  // namespace quipu::detail::on_cuda
