#pragma once
// Softmax attention by ordinary arithmetic. A block of 256 threads makes 64 rows of a result, and
// of its columns as many as fit into registers (64 or 128; for wider ones several blocks find the
// same weights). Its own side, queries or keys, stays, while the other passes by in tiles of 64:
//   scores = own other^T, in steps of some features, 4 x 4 a thread;
//   weights or gradients of scores in their place, through shared memory, where the half warp that
//   made a row also reads it;
//   result += weights values, 4 x 4 or 4 x 8 a thread.
// Forward subtracts the largest score so far and shrinks its sums when that grows. Each block reads
// the other side once, from memory or, where it fits, from the second-level cache. Multiplications
// bound it: every vector from shared memory feeds 8 of them. Each sum has one owner and one order.
#include <cmath>

#include "attention.cuh"
#include "quipu/core/error.h"
#include "runtime/run.h"

namespace quipu::on_cuda {

namespace attention_tiles {

inline constexpr int side = 64;            // of a tile
inline constexpr int team = 16;            // threads that share rows
inline constexpr int strip = side / team;  // rows and columns of scores a thread has

/// 16 bytes of numbers.
template <class T>
struct alignas(16) Vector {
  static constexpr int count = 16 / static_cast<int>(sizeof(T));
  T values[count];
};

template <class T, int vectors>
struct Sizes {
  static constexpr int lanes = Vector<T>::count;
  static constexpr int depth = 256 / static_cast<int>(sizeof(T));  // features in a step
  static constexpr int columns = team * lanes * vectors;           // of the result
  // One more vector puts the rows that are read together into different banks.
  static constexpr int depth_pitch = depth + lanes, weight_pitch = side + lanes;
  static constexpr int own = side * depth_pitch, other = side * weight_pitch,
                       values = side * columns;
  static constexpr std::size_t bytes(bool two_products) {
    return sizeof(T) * static_cast<std::size_t>(own * (two_products ? 2 : 1) + other + values);
  }
};

template <class T>
__device__ __forceinline__ const Vector<T>& vector_at(const T* tile, int i) {
  return reinterpret_cast<const Vector<T>*>(tile)[i / Vector<T>::count];
}
template <class T>
__device__ __forceinline__ void put_vector(T* tile, int i, const Vector<T>& v) {
  reinterpret_cast<Vector<T>*>(tile)[i / Vector<T>::count] = v;
}

/// Which part of a matrix goes into a tile. Beyond its end there are zeros.
struct Window {
  int first, end;        // rows
  int column, features;  // the first of the tile, and how many there are in all
  int wanted;            // columns of the tile that anyone reads
};

template <bool of_queries, int width, class E, class T>
__device__ __forceinline__ void load_packed(T* tile, int pitch, const Attention<T>& a,
                                            const AttentionPlace& place, const AttentionView& x,
                                            const Window& w) {
  using Chunk = Packed<T, E>;
  constexpr int pieces = width / Chunk::count, lanes = Vector<T>::count;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < side * pieces; i += block_threads) {
    const int row = i / pieces, column = i % pieces * Chunk::count;
    if (column >= w.wanted) continue;
    T values[Chunk::count] = {};
    if (w.first + row < w.end && w.column + column < w.features) {
      Chunk::load(x.data, x.dtype, place.start<of_queries>(a, x, w.first + row) + w.column + column,
                  values);
    }
#pragma unroll
    for (int j = 0; j < Chunk::count; j += lanes) {
      Vector<T> v;
#pragma unroll
      for (int l = 0; l < lanes; ++l) v.values[l] = values[j + l];
      put_vector(tile, row * pitch + column + j, v);
    }
  }
}

/// An element of an input that computes in T.
template <class T>
__device__ __forceinline__ T load_real(const AttentionView& x, std::int64_t at) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<const double*>(x.data)[at];
  } else {
    switch (x.dtype) {
      case DType::f32: return static_cast<const float*>(x.data)[at];
      case DType::bf16: return converted<T>(static_cast<const __nv_bfloat16*>(x.data)[at]);
      default: return converted<T>(static_cast<const __half*>(x.data)[at]);
    }
  }
}

/// `width` columns of 64 rows.
template <bool of_queries, int width, class T>
__device__ __forceinline__ void load_tile(T* tile, int pitch, const Attention<T>& a,
                                          const AttentionPlace& place, const AttentionView& x,
                                          const Window& w) {
  if (x.packed) {
    if constexpr (std::is_same_v<T, double>) {
      return load_packed<of_queries, width, double>(tile, pitch, a, place, x, w);
    } else {
      switch (x.dtype) {
        case DType::f32: return load_packed<of_queries, width, float>(tile, pitch, a, place, x, w);
        case DType::bf16:
          return load_packed<of_queries, width, __nv_bfloat16>(tile, pitch, a, place, x, w);
        default: return load_packed<of_queries, width, __half>(tile, pitch, a, place, x, w);
      }
    }
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < side * width; i += block_threads) {
    const int row = i / width, column = i % width;
    if (column >= (w.wanted + Vector<T>::count - 1) / Vector<T>::count * Vector<T>::count) continue;
    T value(0);
    if (w.first + row < w.end && w.column + column < w.features) {
      const std::int64_t at = place.start<of_queries>(a, x, w.first + row);
      value = load_real<T>(x, at + (w.column + column) * x.step);
    }
    tile[row * pitch + column] = value;
  }
}

/// What a thread has of a tile: rows y, y + 16, ... and columns x, x + 16, ...
struct Corner {
  int x = static_cast<int>(threadIdx.x) % team, y = static_cast<int>(threadIdx.x) / team;
};

template <class T>
using Scores = T[strip][strip];

template <class T>
__device__ __forceinline__ void add_features(Scores<T>& s, const T* own, const T* other,
                                             int features) {
  constexpr int lanes = Vector<T>::count, pitch = Sizes<T, 1>::depth_pitch;
  const Corner at;
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

/// result += weights values, over the first `count` of the other side and the first columns.
template <class T, int vectors>
__device__ __forceinline__ void add_values(T (&result)[strip][Sizes<T, vectors>::lanes * vectors],
                                           const T* weights, const T* values, int count,
                                           int columns) {
  using S = Sizes<T, vectors>;
  const Corner at;
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

/// Folds over the threads that share rows.
template <class T, class Combine>
__device__ __forceinline__ T fold_row(T value, Combine combine) {
#pragma unroll
  for (int lanes = team / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, lanes));
  }
  return value;
}

/// The largest score and the sum of a thread's rows, of which each thread of a team has a part.
template <class T>
struct Online {
  T largest[strip], sum[strip];

  /// Scores become weights; returns what sums so far shrink by.
  __device__ __forceinline__ T weigh(int i, T (&scores)[strip]) {
    T most = scores[0];
#pragma unroll
    for (int j = 1; j < strip; ++j) most = most > scores[j] ? most : scores[j];
    most = fold_row(most, [](T a, T b) { return a > b ? a : b; });
    const T before = largest[i];
    largest[i] = before > most ? before : most;  // NaN is passed over: it shows in the sum
    const T shrink = std::exp(before - largest[i]);
    sum[i] *= shrink;
#pragma unroll
    for (int j = 0; j < strip; ++j) {
      scores[j] = std::exp(scores[j] - largest[i]);
      sum[i] += scores[j];
    }
    return shrink;
  }
};

template <bool of_queries, int width, class E, class T>
__device__ __forceinline__ void put_packed(const T* tile, const Attention<T>& a,
                                           const AttentionPlace& place, const Window& w) {
  using Chunk = Packed<T, E>;
  constexpr int pieces = width / Chunk::count;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < side * pieces; i += block_threads) {
    const int row = i / pieces, column = i % pieces * Chunk::count;
    if (w.first + row >= w.end || column >= w.wanted) continue;
    T values[Chunk::count];
#pragma unroll
    for (int j = 0; j < Chunk::count; ++j) values[j] = tile[row * width + column + j];
    Chunk::put(a.out.data, a.out.dtype,
               place.start<of_queries>(a, a.out, w.first + row) + w.column + column, values, a.add);
  }
}

/// A tile of `width` columns into the output, (=|+=).
template <bool of_queries, int width, class T>
__device__ __forceinline__ void put_tile(const T* tile, const Attention<T>& a,
                                         const AttentionPlace& place, const Window& w) {
  if (a.out.packed && compute_type(a.out.dtype) == dtype_of<T>) {
    if constexpr (std::is_same_v<T, double>) {
      return put_packed<of_queries, width, double>(tile, a, place, w);
    } else {
      switch (a.out.dtype) {
        case DType::f32: return put_packed<of_queries, width, float>(tile, a, place, w);
        case DType::bf16: return put_packed<of_queries, width, __nv_bfloat16>(tile, a, place, w);
        default: return put_packed<of_queries, width, __half>(tile, a, place, w);
      }
    }
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < side * width; i += block_threads) {
    const int row = i / width, column = i % width;
    if (w.first + row >= w.end || column >= w.wanted) continue;
    const std::int64_t at = place.start<of_queries>(a, a.out, w.first + row);
    put_element(a.out.data, a.out.dtype, at + (w.column + column) * a.out.step,
                tile[row * width + column], a.add);
  }
}

template <class T, int vectors, AttentionPass pass>
__global__ void __launch_bounds__(block_threads)
    attend_tiles(Attention<T> a, int tiles, int chunks) {
  using S = Sizes<T, vectors>;
  constexpr bool of_queries = is_of_queries(pass), through_scores = goes_through_scores(pass);
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  T* const own = dynamic_shared<T>();
  T* const own_second = own + S::own;
  T* const other = own_second + (through_scores ? S::own : 0);
  T* const values = other + S::other;

  const unsigned block = blockIdx.x / static_cast<unsigned>(chunks);
  const int chunk = static_cast<int>(blockIdx.x % static_cast<unsigned>(chunks));
  const int head = static_cast<int>(block / static_cast<unsigned>(tiles));
  const int tile = static_cast<int>(block % static_cast<unsigned>(tiles));
  const AttentionPlace place{head / a.key_heads, head % a.key_heads};
  const Corner corner;
  const int own_end = of_queries ? a.rows : a.m;
  // With a causal mask the last queries have most to do, and begin first.
  const int first = (of_queries ? tiles - 1 - tile : tile) * side;
  const int other_end = of_queries ? a.most_keys(first, first + side) : a.rows;

  T result[strip][S::lanes * vectors] = {};
  Online<T> online;
  int limits[strip];
  T lse[strip], mean[strip];
  const auto look_up = [&](int i, int row) {
    const bool inside = row < a.rows;
    limits[i] = inside ? a.limit(row) : 0;
    if constexpr (pass != AttentionPass::forward) {
      lse[i] = inside ? a.lse[place.statistic(a, row)] : T(0);
    }
    if constexpr (through_scores) mean[i] = inside ? a.mean[place.statistic(a, row)] : T(0);
  };
#pragma unroll
  for (int i = 0; i < strip; ++i) {
    online.largest[i] = std::numeric_limits<T>::lowest();
    online.sum[i] = T(0);
    if constexpr (of_queries) look_up(i, first + corner.y + i * team);
  }

  const int features = through_scores ? a.d : a.e;                                // of the result
  const int columns = vectors == 1 ? features - chunk * S::columns : S::columns;  // of the block
  bool is_first = true;
  for (int from = 0; from < other_end; from += side) {
    if (!of_queries && a.most_keys(from, from + side) <= first) continue;  // the whole block
    const int count = min(side, other_end - from);
    const auto add_product = [&](Scores<T>& s, T* kept, const AttentionView& mine,
                                 const AttentionView& theirs, int depth) {
#pragma unroll 1
      for (int c = 0; c < depth; c += S::depth) {
        __syncthreads();
        if (is_first || depth > S::depth) {
          load_tile<of_queries, S::depth>(kept, S::depth_pitch, a, place, mine,
                                          {first, own_end, c, depth, depth - c});
        }
        load_tile<!of_queries, S::depth>(other, S::depth_pitch, a, place, theirs,
                                         {from, from + count, c, depth, depth - c});
        __syncthreads();
        add_features(s, kept, other, min(S::depth, depth - c));
      }
    };
    const auto load_values = [&](const AttentionView& source) {
      __syncthreads();
      load_tile<!of_queries, S::columns>(
          values, S::columns, a, place, source,
          {from, from + count, chunk * S::columns, features, columns});
    };
    Scores<T> s = {}, d_s = {};
    if constexpr (pass == AttentionPass::forward) {
      load_values(a.v);
      add_product(s, own, a.q, a.k, a.d);
    } else if constexpr (pass == AttentionPass::d_q) {
      load_values(a.k);
      add_product(d_s, own_second, a.d_o, a.v, a.e);
      add_product(s, own, a.q, a.k, a.d);
    } else if constexpr (pass == AttentionPass::d_k) {
      load_values(a.q);
      add_product(d_s, own_second, a.v, a.d_o, a.e);
      add_product(s, own, a.k, a.q, a.d);
    } else {
      load_values(a.d_o);
      add_product(s, own, a.k, a.q, a.d);
    }
    is_first = false;
    if constexpr (!of_queries) {
#pragma unroll
      for (int j = 0; j < strip; ++j) look_up(j, from + corner.x + j * team);
    }
    __syncthreads();  // weights take the place of the other side, and values are there
#pragma unroll
    for (int i = 0; i < strip; ++i) {
#pragma unroll
      for (int j = 0; j < strip; ++j) {
        const int key = of_queries ? from + corner.x + j * team : first + corner.y + i * team;
        const int row = of_queries ? i : j;
        const bool attends = key < limits[row];
        if constexpr (pass == AttentionPass::forward) {
          s[i][j] = attends ? s[i][j] * a.scale : nothing;
          if (first + i * team >= own_end) s[i][j] = T(0);  // rows that are not there
        } else {
          s[i][j] = attends ? std::exp(s[i][j] * a.scale - lse[row]) : T(0);
          if constexpr (through_scores) {
            s[i][j] = attends ? s[i][j] * (d_s[i][j] - mean[row]) : T(0);
          }
        }
      }
      if (pass == AttentionPass::forward && first + i * team < own_end) {  // the whole block
        const T shrink = online.weigh(i, s[i]);
#pragma unroll
        for (int c = 0; c < S::lanes * vectors; ++c) result[i][c] *= shrink;
      }
#pragma unroll
      for (int j = 0; j < strip; ++j) {
        other[(corner.y + i * team) * S::weight_pitch + corner.x + j * team] = s[i][j];
      }
    }
    __syncwarp();
    add_values<T, vectors>(result, other, values, count, columns);
  }

  __syncthreads();  // the result takes the place of the values
#pragma unroll
  for (int i = 0; i < strip; ++i) {
    const int row = first + corner.y + i * team;
    T sum(1);
    if constexpr (pass == AttentionPass::forward) {
      sum = fold_row(online.sum[i], [](T x, T y) { return x + y; });
      if (row < own_end && a.lse != nullptr && chunk == 0 && corner.x == 0) {
        a.lse[place.statistic(a, row)] =
            limits[i] > 0 ? online.largest[i] + std::log(sum) : nothing;
      }
    }
#pragma unroll
    for (int u = 0; u < vectors; ++u) {
      Vector<T> numbers;
#pragma unroll
      for (int l = 0; l < S::lanes; ++l) {
        T number = result[i][u * S::lanes + l];
        if constexpr (pass == AttentionPass::forward) number = limits[i] > 0 ? number / sum : T(0);
        numbers.values[l] = through_scores ? number * a.scale : number;
      }
      put_vector(values, (corner.y + i * team) * S::columns + (u * team + corner.x) * S::lanes,
                 numbers);
    }
  }
  __syncthreads();
  put_tile<of_queries, S::columns>(
      values, a, place,
      {first, own_end, chunk * S::columns, features, features - chunk * S::columns});
}

template <class T, int vectors, AttentionPass pass>
void run_tiles(const View& on, const Attention<T>& a, std::int64_t heads) {
  using S = Sizes<T, vectors>;
  const int own = is_of_queries(pass) ? a.rows : a.m;
  const int features = goes_through_scores(pass) ? a.d : a.e;
  const int tiles = (own + side - 1) / side;
  const int chunks = std::max(1, (features + S::columns - 1) / S::columns);
  const std::int64_t blocks = heads * tiles * chunks;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", own,
        " rows is beyond what a device takes at once");
  run(Queue(on), attend_tiles<T, vectors, pass>, static_cast<unsigned>(blocks), block_threads,
      S::bytes(goes_through_scores(pass)), a, tiles, chunks);
}

template <class T, int vectors>
void run_pass(const View& on, const Attention<T>& a, std::int64_t heads, AttentionPass pass) {
  switch (pass) {
    case AttentionPass::forward: return run_tiles<T, vectors, AttentionPass::forward>(on, a, heads);
    case AttentionPass::d_q: return run_tiles<T, vectors, AttentionPass::d_q>(on, a, heads);
    case AttentionPass::d_k: return run_tiles<T, vectors, AttentionPass::d_k>(on, a, heads);
    case AttentionPass::d_v: return run_tiles<T, vectors, AttentionPass::d_v>(on, a, heads);
  }
}

}  // namespace attention_tiles

}  // namespace quipu::on_cuda
