#pragma once
// Online softmax (Milakov and Gimelshein 2018, arXiv:1805.02867) along lines (columns or rows) that
// the threads of a block share. A thread has a part of S lines side by side (columns of 16 bytes),
// or of one. OnlineLines keeps the running maximum, the sum of e^(x - largest) and, if wanted, the
// mean of weights under the softmax, while entries come in any number of batches; where lines are
// split into parts, partial statistics wait in memory and are merged in order. All orders are fixed
// by the shape of the block: same bits on every run.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "quipu/cuda/ptx.h"
#include "quipu/cuda/tile/line_team.cuh"

namespace quipu::detail::on_cuda {

/// e^x for x <= 0; for 16-bit E by the approximate instruction, whose error disappears in rounding.
template <class E>
__device__ __forceinline__ ComputeOf<E> exp_below(ComputeOf<E> x) {
  if constexpr (is_reduced_v<E>) {
    return ptx::exp2_flushed(x * 1.4426950408889634f);
  } else {
    return std::exp(x);
  }
}

/// A maximum that can be subtracted: -infinity minus itself would be NaN.
template <class T>
__device__ __forceinline__ T finite_shift(T largest) {
  return largest == -std::numeric_limits<T>::infinity() ? T(0) : largest;
}

/// A thread's running statistics of S lines.
template <class E, int S, bool has_weights = false>
struct OnlineLines {
  using T = ComputeOf<E>;
  static constexpr int quantities = has_weights ? 3 : 2;
  // NOLINTNEXTLINE(bugprone-branch-clone): S is 1 in some
  static constexpr int weighted_lines = has_weights ? S : 1;
  T largest[S], sum[S];
  T weighted[weighted_lines];  // the sum of weight * e^(x - largest)

  __device__ __forceinline__ OnlineLines() {
    for (int s = 0; s < S; ++s) {
      largest[s] = -std::numeric_limits<T>::infinity();
      sum[s] = T(0);
      if constexpr (has_weights) weighted[s] = T(0);
    }
  }

  /// Adds the entries begin, begin + step, ... below `end`; loads of `batch` entries are in flight
  /// together. load(i, x) gives entry i of each line, and load(i, x, weights) the weights, too.
  template <int batch, class Load>
  __device__ __forceinline__ void take(std::int64_t begin, std::int64_t end, std::int64_t step,
                                       Load load) {
    for (std::int64_t i = begin; i < end; i += batch * step) {
      T x[batch][S], w[batch][weighted_lines];
      for (int b = 0; b < batch; ++b) {
        for (int s = 0; s < S; ++s) x[b][s] = -std::numeric_limits<T>::infinity();
        for (int s = 0; s < weighted_lines; ++s) w[b][s] = T(0);
        if (i + b * step >= end) continue;
        if constexpr (has_weights) {
          load(i + b * step, x[b], w[b]);
        } else {
          load(i + b * step, x[b]);
        }
      }
      add(x, w);
    }
  }

  /// Adds `batch` entries of each line.
  template <int batch>
  __device__ __forceinline__ void add(const T (&x)[batch][S], const T (&w)[batch][weighted_lines]) {
    for (int s = 0; s < S; ++s) {
      T new_largest = largest[s];
      for (int b = 0; b < batch; ++b) new_largest = max(new_largest, x[b][s]);
      rescale_to(s, new_largest);
      const T shift = finite_shift(new_largest);
      for (int b = 0; b < batch; ++b) {
        const T e = exp_below<E>(x[b][s] - shift);
        sum[s] += e;
        if constexpr (has_weights) weighted[s] += e * w[b][s];
      }
    }
  }

  /// Reduces over the members of each line; all get the result. All threads of the block call it.
  /// `scratch` is shared memory, twice what a fold needs, and free again after the next barrier.
  __device__ __forceinline__ void join(const LineTeam& team, T* scratch) {
    T* const second_scratch = scratch + LineTeam::fold_size(blockDim.x, team.lines, S);
    T new_largest[S];
    for (int s = 0; s < S; ++s) new_largest[s] = largest[s];
    team.fold(new_largest, scratch, Larger());
    for (int s = 0; s < S; ++s) rescale_to(s, new_largest[s]);
    team.fold(sum, second_scratch, Plus());
    if constexpr (has_weights) team.fold(weighted, scratch, Plus());
  }

  __device__ __forceinline__ void merge(const OnlineLines& next) {
    OnlineLines moved = next;
    for (int s = 0; s < S; ++s) {
      const T new_largest = max(largest[s], next.largest[s]);
      rescale_to(s, new_largest);
      moved.rescale_to(s, new_largest);
      sum[s] += moved.sum[s];
      if constexpr (has_weights) weighted[s] += moved.weighted[s];
    }
  }

  /// Replaces sums by their inverses, weighted sums by means, and makes `largest` finite: the
  /// softmax of x is then e^(x - largest) * sum.
  __device__ __forceinline__ void finish() {
    for (int s = 0; s < S; ++s) {
      largest[s] = finite_shift(largest[s]);
      sum[s] = T(1) / sum[s];
      if constexpr (has_weights) weighted[s] *= sum[s];
    }
  }

  /// Partial statistics are [part][quantity][line]; this thread has the lines from `first` of
  /// `total` on.
  __device__ __forceinline__ void store_part(T* parts, std::int64_t part, std::int64_t total,
                                             std::int64_t first) const {
    T* const at = parts + part * quantities * total + first;
    for (int s = 0; s < S; ++s) {
      at[s] = largest[s];
      at[total + s] = sum[s];
      if constexpr (has_weights) at[2 * total + s] = weighted[s];
    }
  }
  /// Merges `count` stored parts, each read by one member of the line's team; all get the result,
  /// as from join(). `active`: the thread has lines.
  __device__ __forceinline__ void merge_parts(const LineTeam& team, T* scratch, const T* parts,
                                              std::int64_t count, std::int64_t total,
                                              std::int64_t first, bool active) {
    for (std::int64_t part = team.member; part < count && active; part += team.members) {
      const T* const at = parts + part * quantities * total + first;
      OnlineLines next;
      for (int s = 0; s < S; ++s) {
        next.largest[s] = at[s];
        next.sum[s] = at[total + s];
        if constexpr (has_weights) next.weighted[s] = at[2 * total + s];
      }
      merge(next);
    }
    join(team, scratch);
  }

 private:
  /// Rescales the sums to a larger maximum.
  __device__ __forceinline__ void rescale_to(int s, T new_largest) {
    const T factor = exp_below<E>(largest[s] - finite_shift(new_largest));
    sum[s] *= factor;
    if constexpr (has_weights) weighted[s] *= factor;
    largest[s] = new_largest;
  }
};

}  // namespace quipu::detail::on_cuda
