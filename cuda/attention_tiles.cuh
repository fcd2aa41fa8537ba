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

/// A vector's worth of neighbours in a row of elements of type E: 16 bytes, or 8 where E is
/// reduced.
template <class T, class E>
struct Neighbours {
  static constexpr int count = Vector<T>::count;
  struct alignas(count * sizeof(E)) Elements {
    E elements[count];
  };
  __device__ __forceinline__ static Vector<T> load(const AttentionView& x, std::int64_t at, int) {
    const Elements pack = static_cast<const Elements*>(x.data)[at / count];
    Vector<T> v;
#pragma unroll
    for (int j = 0; j < count; ++j) v.values[j] = converted<T>(pack.elements[j]);
    return v;
  }
  __device__ __forceinline__ static void put(const AttentionView& x, std::int64_t at, int,
                                             const Vector<T>& v, bool add) {
    Elements& place = static_cast<Elements*>(x.data)[at / count];
    Vector<T> old = {};
    if (add) old = load(x, at, count);
    Elements pack;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      pack.elements[j] = converted<E>(add ? old.values[j] + v.values[j] : v.values[j]);
    }
    place = pack;
  }
};

/// The same with any strides, `left` of them at most.
template <class T>
struct Apart {
  static constexpr int count = Vector<T>::count;
  __device__ __forceinline__ static Vector<T> load(const AttentionView& x, std::int64_t at,
                                                   int left) {
    Vector<T> v = {};
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (j < left) v.values[j] = load_element(x, at + j * x.step);
    }
    return v;
  }
  __device__ __forceinline__ static void put(const AttentionView& x, std::int64_t at, int left,
                                             const Vector<T>& v, bool add) {
    for (int j = 0; j < min(count, left); ++j) {
      T value = v.values[0];
#pragma unroll
      for (int l = 1; l < count; ++l) value = l == j ? v.values[l] : value;
      put_element(x.data, x.dtype, at + j * x.step, value, add);
    }
  }

 private:
  __device__ __forceinline__ static T load_element(const AttentionView& x, std::int64_t at) {
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
};

/// Calls f with how the elements of a view are accessed. All threads take one branch.
template <class T, class F>
__device__ __forceinline__ void with_access(const AttentionView& x, F f) {
  if (!x.packed || compute_type(x.dtype) != dtype_of<T>) return f(Apart<T>{});
  if constexpr (std::is_same_v<T, double>) {
    f(Neighbours<T, double>{});
  } else {
    switch (x.dtype) {
      case DType::f32: return f(Neighbours<T, float>{});
      case DType::bf16: return f(Neighbours<T, __nv_bfloat16>{});
      default: return f(Neighbours<T, __half>{});
    }
  }
}

/// Up to `width` columns of 64 rows.
template <bool of_queries, int width, class T>
__device__ __forceinline__ void load_tile(T* tile, int pitch, const Attention<T>& a,
                                          const AttentionPlace& place, const AttentionView& x,
                                          const Window& w) {
  constexpr int lanes = Vector<T>::count, pieces = width / lanes;
  with_access<T>(x, [&](auto access) {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < side * pieces; i += block_threads) {
      const int row = w.first + i / pieces, column = i % pieces * lanes;
      if (column >= w.wanted) continue;
      Vector<T> v = {};
      const int left = w.features - w.column - column;
      if (row < w.end && left > 0) {
        v = access.load(x, place.start<of_queries>(a, x, row) + (w.column + column) * x.step, left);
      }
      put_vector(tile, i / pieces * pitch + column, v);
    }
  });
}

/// A tile of `width` columns into the output, (=|+=).
template <bool of_queries, int width, class T>
__device__ __forceinline__ void put_tile(const T* tile, const Attention<T>& a,
                                         const AttentionPlace& place, const Window& w) {
  constexpr int lanes = Vector<T>::count, pieces = width / lanes;
  with_access<T>(a.out, [&](auto access) {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < side * pieces; i += block_threads) {
      const int row = w.first + i / pieces, column = i % pieces * lanes;
      if (row >= w.end || column >= w.wanted) continue;
      access.put(a.out, place.start<of_queries>(a, a.out, row) + (w.column + column) * a.out.step,
                 w.wanted - column, vector_at(tile, i / pieces * width + column), a.add);
    }
  });
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

/// Blocks that a multiprocessor shall have registers for.
template <class T, int vectors, AttentionPass pass>
inline constexpr int blocks_at_once = sizeof(T) == 4 && (vectors == 1 || !goes_through_scores(pass))
                                          ? 2
                                          : 1;

template <class T, int vectors, AttentionPass pass>
__global__ void __launch_bounds__(block_threads, blocks_at_once<T, vectors, pass>)
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
