#pragma once
// Softmax along lines (columns or rows) that the threads of a block share. A thread holds a part of
// S lines side by side, which columns of 16 bytes are, or of one. OnlineLines keeps the largest
// entry, the sum of e^(x - largest) and, if wanted, the mean of weights under the softmax, while
// entries come in any number of batches; where lines are cut into parts, these wait in memory and
// are merged in order. All orders are fixed by the shape of the block: same bits on every run.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "line_team.cuh"
#include "ptx.h"

namespace quipu::on_cuda {

/// e^x for x <= 0, as exact as elements of type E can show.
template <class E>
__device__ __forceinline__ ComputeOf<E> exp_below(ComputeOf<E> x) {
  if constexpr (is_reduced_v<E>) {
    return ptx::exp2_flushed(x * 1.4426950408889634f);
  } else {
    return std::exp(x);
  }
}

/// -infinity minus itself would be no number.
template <class T>
__device__ __forceinline__ T finite_shift(T largest) {
  return largest == -std::numeric_limits<T>::infinity() ? T(0) : largest;
}

/// What is known of S lines after some of their entries, in one thread.
template <class E, int S, bool has_weights = false>
struct OnlineLines {
  using T = ComputeOf<E>;
  static constexpr int quantities = has_weights ? 3 : 2;
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

  /// Takes in the entries begin, begin + step, ... below `end`, `batch` of them at a time, so that
  /// their loads are under way together. load(i, x) gives entry i of each line, and
  /// load(i, x, weights) the weights, too.
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

  /// Takes in `batch` entries of each line.
  template <int batch>
  __device__ __forceinline__ void add(const T (&x)[batch][S], const T (&w)[batch][weighted_lines]) {
    for (int s = 0; s < S; ++s) {
      T raised = largest[s];
      for (int b = 0; b < batch; ++b) raised = max(raised, x[b][s]);
      raise(s, raised);
      const T shift = finite_shift(raised);
      for (int b = 0; b < batch; ++b) {
        const T e = exp_below<E>(x[b][s] - shift);
        sum[s] += e;
        if constexpr (has_weights) weighted[s] += e * w[b][s];
      }
    }
  }

  /// Joins what the members of each line have; all get the result. All threads of the block come
  /// here. `place` is shared, twice what a fold needs, and free again after the next barrier.
  __device__ __forceinline__ void join(const LineTeam& team, T* place) {
    T* const other = place + LineTeam::room(blockDim.x, team.lines, S);
    T raised[S];
    for (int s = 0; s < S; ++s) raised[s] = largest[s];
    team.fold(raised, place, Larger());
    for (int s = 0; s < S; ++s) raise(s, raised[s]);
    team.fold(sum, other, Plus());
    if constexpr (has_weights) team.fold(weighted, place, Plus());
  }

  __device__ __forceinline__ void merge(const OnlineLines& next) {
    OnlineLines moved = next;
    for (int s = 0; s < S; ++s) {
      const T raised = max(largest[s], next.largest[s]);
      raise(s, raised);
      moved.raise(s, raised);
      sum[s] += moved.sum[s];
      if constexpr (has_weights) weighted[s] += moved.weighted[s];
    }
  }

  /// Makes sums their inverses, weighted sums means, and `largest` fit to be subtracted: the
  /// softmax of x is then e^(x - largest) sum.
  __device__ __forceinline__ void finish() {
    for (int s = 0; s < S; ++s) {
      largest[s] = finite_shift(largest[s]);
      sum[s] = T(1) / sum[s];
      if constexpr (has_weights) weighted[s] *= sum[s];
    }
  }

  /// Parts lie as [part][quantity][line]; this thread has the lines from `first` of `total` on.
  __device__ __forceinline__ void store_part(T* parts, std::int64_t part, std::int64_t total,
                                             std::int64_t first) const {
    T* const at = parts + part * quantities * total + first;
    for (int s = 0; s < S; ++s) {
      at[s] = largest[s];
      at[total + s] = sum[s];
      if constexpr (has_weights) at[2 * total + s] = weighted[s];
    }
  }
  /// Merges `count` parts that were stored so, each read by one member of the line's team; all get
  /// the result, as from join(). `active`: the thread has lines.
  __device__ __forceinline__ void merge_parts(const LineTeam& team, T* place, const T* parts,
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
    join(team, place);
  }

 private:
  /// Sums with respect to a larger `largest`.
  __device__ __forceinline__ void raise(int s, T raised) {
    const T shrink = exp_below<E>(largest[s] - finite_shift(raised));
    sum[s] *= shrink;
    if constexpr (has_weights) weighted[s] *= shrink;
    largest[s] = raised;
  }
};

}  // namespace quipu::on_cuda
