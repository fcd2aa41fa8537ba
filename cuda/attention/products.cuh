#pragma once
// Parts of the general attention kernels (tiles.cuh): sizes of tiles, their products by ordinary
// multiply-adds, and the running softmax.
#include <cmath>

#include "access.cuh"
#include "quipu/cuda/tile/running_softmax.cuh"

namespace quipu::detail::on_cuda::attention_tiles {

inline constexpr int team = 16;            // threads of a row
inline constexpr int strip = side / team;  // rows and columns of scores of a thread

template <class T, int vectors>
struct Sizes {
  static constexpr int lanes = Vector<T>::count;
  static constexpr int depth = 256 / static_cast<int>(sizeof(T));  // features in a step
  static constexpr int columns = team * lanes * vectors;           // of the result
  // One vector of padding avoids bank conflicts.
  static constexpr int depth_pitch = depth + lanes, weight_pitch = side + lanes;
  static constexpr int own = side * depth_pitch, other = side * weight_pitch,
                       values = side * columns;
  static constexpr std::size_t bytes(bool two_products) {
    return sizeof(T) * static_cast<std::size_t>(own * (two_products ? 2 : 1) + other + values);
  }
};

/// A thread's elements of a tile: rows y, y + 16, ... and columns x, x + 16, ...
struct ThreadTile {
  int x = static_cast<int>(threadIdx.x) % team, y = static_cast<int>(threadIdx.x) / team;
};

template <class T>
using Scores = T[strip][strip];
template <class T, int vectors>
using Result = T[strip][Sizes<T, vectors>::lanes * vectors];

template <class T>
__device__ __forceinline__ void add_features(Scores<T>& s, const T* own, const T* other,
                                             int features) {
  constexpr int lanes = Vector<T>::count, pitch = Sizes<T, 1>::depth_pitch;
  const ThreadTile at;
#pragma unroll 1
  for (int c = 0; c < features; c += lanes) {
    Vector<T> left[strip], right[strip];
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      left[i] = vector_at(own, (at.y + i * team) * pitch + c);
      right[i] = vector_at(other, (at.x + i * team) * pitch + c);
    }
#pragma unroll
    for (int l = 0; l < lanes; ++l) {
#pragma unroll
      for (int i = 0; i < strip; ++i) {
#pragma unroll
        for (int j = 0; j < strip; ++j) s[i][j] += left[i].values[l] * right[j].values[l];
      }
    }
  }
}

/// result += weights values, over `count` rows of the other side.
template <class T, int vectors>
__device__ __forceinline__ void add_values(Result<T, vectors>& result, const T* weights,
                                           const T* values, int count, int columns) {
  using S = Sizes<T, vectors>;
  const ThreadTile at;
  if (at.x * S::lanes >= columns) return;
  for (int k = 0; k < count; k += S::lanes) {
    Vector<T> left[strip];
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      left[i] = vector_at(weights, (at.y + i * team) * S::weight_pitch + k);
    }
#pragma unroll
    for (int l = 0; l < S::lanes; ++l) {
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        const Vector<T> right =
            vector_at(values, (k + l) * S::columns + (u * team + at.x) * S::lanes);
#pragma unroll
        for (int i = 0; i < strip; ++i) {
#pragma unroll
          for (int r = 0; r < S::lanes; ++r) {
            result[i][u * S::lanes + r] += left[i].values[l] * right.values[r];
          }
        }
      }
    }
  }
}

/// Reduces over the threads of a row.
template <class T, class Combine>
__device__ __forceinline__ T fold_row(T value, Combine combine) {
#pragma unroll
  for (int lanes = team / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, lanes));
  }
  return value;
}

/// One step of the running softmax of a row, of whose sum each thread has a part: scores become
/// weights; returns the factor that rescales earlier sums to the new maximum.
template <class T>
__device__ __forceinline__ T softmax_step(RunningSoftmax<T>& row, T (&scores)[strip]) {
  T most = scores[0];
#pragma unroll
  for (int j = 1; j < strip; ++j) most = most > scores[j] ? most : scores[j];
  most = fold_row(most, [](T a, T b) { return a > b ? a : b; });
  const T rescale = row.raise(most, [](T x) { return std::exp(x); });
#pragma unroll
  for (int j = 0; j < strip; ++j) {
    scores[j] = std::exp(scores[j] - row.largest);
    row.sum += scores[j];
  }
  return rescale;
}

}  // namespace quipu::detail::on_cuda::attention_tiles
