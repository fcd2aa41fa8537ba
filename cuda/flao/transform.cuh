#pragma once
// Prologue and epilogue of the general kernels: rows of q, k, v and g are loaded into a tile in
// shared memory and encoded there (activation, then position encoding); gradients of encoded rows
// become those of the inputs. A warp has whole rows, so that __syncwarp() is enough between steps.
#include <cmath>

#include "quipu/cuda/tile/angles.cuh"
#include "quipu/cuda/tile/running_softmax.cuh"
#include "view.cuh"

namespace quipu::detail::on_cuda::gated {

/// Statistics of softmax over a row or column: the maximum, the inverse of the sum of exponentials
/// and, for backward, the mean of the gradient under the softmax.
template <class T>
struct SoftmaxStats {
  __device__ __forceinline__ static SoftmaxStats of(const RunningSoftmax<T>& all) {
    return {all.largest, T(1) / all.sum};
  }
  T largest{}, inverse{}, mean{};
};

/// The activation of a number and its derivative.
template <class T>
struct Activated {
  T value, slope;
  T mean{};
  bool cut = false;

  __device__ __forceinline__ T gradient(T d) const { return cut ? T(0) : slope * (d - mean); }
};
template <class T>
__device__ __forceinline__ Activated<T> activated(Act act, T x, const SoftmaxStats<T>& softmax) {
  if (act == Act::none) return {x, T(1)};
  if (act == Act::relu) return {x <= T(0) ? T(0) : x, T(1), T(0), x <= T(0)};
  const T e = std::exp(act == Act::softmax ? x - softmax.largest : -std::abs(x));
  if (act == Act::softmax) return {e * softmax.inverse, e * softmax.inverse, softmax.mean};
  const T large = T(1) / (T(1) + e), small = e * large;
  const T value = x < T(0) ? small : large, rest = x < T(0) ? large : small;
  if (act == Act::sigmoid) return {value, value * rest};
  return {x * value, value * (T(1) + x * rest)};
}

/// Adds the numbers x of columns from c on, as far as they lie before `end`.
template <class T>
__device__ __forceinline__ void add_numbers(RunningSoftmax<T>& to, const Vector<T>& x, unsigned c,
                                            unsigned end) {
  T most = to.largest;
#pragma unroll
  for (unsigned j = 0; j < vector_width<T>; ++j) most = c + j < end && x[j] > most ? x[j] : most;
  to.raise(most, [](T below) { return std::exp(below); });
#pragma unroll
  for (unsigned j = 0; j < vector_width<T>; ++j) {
    to.sum += c + j < end ? std::exp(x[j] - to.largest) : T(0);
  }
}

/// One of q, k, v, g with its encoding. Without data where backward needs no values of it.
template <class T>
struct FlaoRows {
  FlaoRows(const View& x, const RowTransform& transform, std::int64_t row_features,
           std::int64_t all_tokens, const FlaoSoftmaxStats& columns)
      : view(x),
        act(transform.act),
        kind(transform.theta.defined ? transform.kind : LrpeKind::none),
        features(static_cast<std::uint32_t>(row_features)),
        width(encoded_features(kind, features)),
        tokens(static_cast<std::uint32_t>(all_tokens)),
        over_features(act == Act::softmax && !transform.over_sequence),
        over_sequence(transform.softmax_over_sequence()),
        angles(kind == LrpeKind::none ? RowTransform() : transform, row_features, all_tokens) {
    if (!over_sequence) return;
    largest = columns.largest.as<T>();
    inverse = columns.inverse.as<T>();
    mean = columns.mean.as<T>();
  }

  FlaoView view;
  Act act;
  LrpeKind kind;
  std::uint32_t features, width, tokens;  // width: of an encoded row
  bool over_features, over_sequence;      // axis of softmax
  RowAngles<T> angles;
  T *largest = nullptr, *inverse = nullptr, *mean = nullptr;  // (units, features)

  /// Statistics for feature c: those of its column where softmax goes over the sequence, else
  /// `row`.
  __device__ __forceinline__ SoftmaxStats<T> softmax(const FlaoUnit& unit, unsigned c,
                                                     const SoftmaxStats<T>& row,
                                                     bool with_mean) const {
    if (!over_sequence || c >= features) return row;
    const std::int64_t i = static_cast<std::int64_t>(unit.index) * features + c;
    return {largest[i], inverse[i], with_mean ? mean[i] : T(0)};
  }
};

/// A tile in shared memory: a row for each token from `first` on.
template <class T>
struct Tile {
  T* data;
  unsigned pitch;
  unsigned rows;               // of the tile
  std::uint32_t first, valid;  // rows that have a token
  __device__ __forceinline__ T* row(unsigned r) const { return data + r * pitch; }
};

/// Selects a tile member by member: a reference to one of two would keep both in local memory.
template <class T>
__device__ __forceinline__ Tile<T> select_tile(bool first, const Tile<T>& a, const Tile<T>& b) {
  return {first ? a.data : b.data, first ? a.pitch : b.pitch, a.rows, a.first, a.valid};
}

inline constexpr unsigned block_warps = block_threads / warp_size;

/// Loads rows without encoding them; zeros behind the last feature and in rows without a token.
/// Loads of `batch` rows are in flight together.
template <class T>
__device__ __forceinline__ void load_rows(const FlaoRows<T>& x, const FlaoUnit& unit,
                                          const Tile<T>& tile) {
  constexpr unsigned step = vector_width<T>, batch = 2;
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned from = warp; from < tile.rows; from += block_warps * batch) {
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      Vector<T> values[batch];
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const unsigned r = from + i * block_warps;
        values[i] = r < tile.valid ? x.view.template load<T>(x.view.start(unit, tile.first + r), c)
                                   : Vector<T>{};
      }
#pragma unroll
      for (unsigned i = 0; i < batch; ++i) {
        const unsigned r = from + i * block_warps;
        if (r < tile.rows) store_vector(tile.row(r), c, values[i]);
      }
    }
  }
}

/// Passes over a row: where softmax goes over features, its statistics and the mean of the gradient
/// come before the result.
enum class Sweep { sum, mean, result };

template <class T>
__device__ __forceinline__ void activate_row(const FlaoRows<T>& x, const FlaoUnit& unit, T* row) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size;
  SoftmaxStats<T> of_row;
  if (x.over_features) {
    RunningSoftmax<T> sum;
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      add_numbers(sum, load_vector(row, c), c, x.features);
    }
    of_row = SoftmaxStats<T>::of(fold_warp(sum, RunningSoftmax<T>::merged));
  }
  for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
    Vector<T> v = load_vector(row, c);
#pragma unroll
    for (unsigned j = 0; j < step; ++j) {
      const T y = activated(x.act, v[j], x.softmax(unit, c + j, of_row, false)).value;
      v[j] = c + j < x.features ? y : T(0);
    }
    store_vector(row, c, v);
  }
}

/// Position encoding of a row, in place: rotation (RoPE), or cosine, which doubles the features.
template <class T>
__device__ __forceinline__ void encode_positions(const FlaoRows<T>& x, const FlaoUnit& unit,
                                                 std::uint32_t token, T* row) {
  const unsigned lane = threadIdx.x % warp_size, n = x.angles.count;
  for (unsigned i = lane; i < n; i += warp_size) {
    const math::SinCos<T> sc = math::sincos(x.angles.angle(unit.head, token, i));
    const T a = row[i];
    if (x.kind == LrpeKind::cosine) {
      row[i] = a * sc.cos;
      row[n + i] = a * sc.sin;
    } else {
      const T b = row[n + i];
      row[i] = a * sc.cos - b * sc.sin;
      row[n + i] = a * sc.sin + b * sc.cos;
    }
  }
  for (unsigned i = x.width + lane; i < rounded_up(x.width, vector_width<T>); i += warp_size) {
    row[i] = T(0);
  }
}
/// The gradient of the position encoding, in place: the transposed rotation.
template <class T>
__device__ __forceinline__ void encode_positions_gradient(const FlaoRows<T>& x,
                                                          const FlaoUnit& unit, std::uint32_t token,
                                                          T* row) {
  const unsigned lane = threadIdx.x % warp_size, n = x.angles.count;
  for (unsigned i = lane; i < n; i += warp_size) {
    const math::SinCos<T> sc = math::sincos(x.angles.angle(unit.head, token, i));
    const T a = row[i], b = row[n + i];
    row[i] = a * sc.cos + b * sc.sin;
    if (x.kind != LrpeKind::cosine) row[n + i] = b * sc.cos - a * sc.sin;
  }
}

/// Loads rows of x and encodes them to x~; rows without a token are zeros. Warp w has the rows r
/// with r % block_warps == w.
template <class T>
__device__ __forceinline__ void encode_rows(const FlaoRows<T>& x, const FlaoUnit& unit,
                                            const Tile<T>& tile) {
  load_rows(x, unit, tile);
  const unsigned warp = threadIdx.x / warp_size;
  if (x.act == Act::none && x.kind == LrpeKind::none) return;
  for (unsigned r = warp; r < tile.rows; r += block_warps) {
    T* const row = tile.row(r);
    if (r < tile.valid && x.act != Act::none) activate_row(x, unit, row);
    if (x.kind == LrpeKind::none) continue;
    __syncwarp();
    encode_positions(x, unit, tile.first + r, row);
  }
}

/// Where gradients of x go: to its gradient or, with `for_means`, back into the tile as products y
/// * d_y, whose sums over tokens are the means of softmax over the sequence.
struct FlaoGradTarget {
  FlaoView view;
  bool add = false;
  bool for_means = false;
};

/// The gradient of the activation of a row of x. gradient(c) gives d_y for the vector of features
/// from c on; result(c, d_x, y) takes what becomes of it. x is read only if it is `needed`.
template <class T, class Gradient, class Result>
__device__ __forceinline__ void activation_gradient_of_row(const FlaoRows<T>& x,
                                                           const FlaoUnit& unit,
                                                           std::uint32_t token, bool needed,
                                                           bool with_means, Gradient gradient,
                                                           Result result) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size;
  const std::int64_t start = x.view.start(unit, token);
  RunningSoftmax<T> sum;
  SoftmaxStats<T> of_row;
  T dot(0);
#pragma unroll 1
  for (int i = x.over_features ? 0 : 2; i < 3; ++i) {
    const Sweep sweep = static_cast<Sweep>(i);
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      Vector<T> v{};
      if (needed) v = x.view.template load<T>(start, c);
      if (sweep == Sweep::sum) {
        add_numbers(sum, v, c, x.features);
        continue;
      }
      Vector<T> d = gradient(c);
#pragma unroll
      for (unsigned j = 0; j < step; ++j) {
        const Activated<T> y = activated(x.act, v[j], x.softmax(unit, c + j, of_row, with_means));
        v[j] = y.value;
        dot += c + j < x.features ? y.value * d[j] : T(0);
        d[j] = y.gradient(d[j]);
      }
      if (sweep == Sweep::result) result(c, d, v);
    }
    if (sweep == Sweep::sum) {
      of_row = SoftmaxStats<T>::of(fold_warp(sum, RunningSoftmax<T>::merged));
    }
    if (sweep == Sweep::mean) of_row.mean = fold_warp(dot, [](T a, T b) { return a + b; });
  }
}

/// Stores the gradient of x, made from a tile of gradients of x~, which is overwritten.
template <class T>
__device__ __forceinline__ void store_row_gradients(const FlaoRows<T>& x, const FlaoUnit& unit,
                                                    const Tile<T>& tile,
                                                    const FlaoGradTarget& target) {
  const unsigned warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < tile.valid; r += block_warps) {
    T* const row = tile.row(r);
    const std::uint32_t token = tile.first + r;
    if (x.kind != LrpeKind::none) {
      encode_positions_gradient(x, unit, token, row);
      __syncwarp();
    }
    const std::int64_t to = target.view.start(unit, token);
    activation_gradient_of_row(
        x, unit, token, x.act != Act::none, !target.for_means,
        [&](unsigned c) { return load_vector(row, c); },
        [&](unsigned c, const Vector<T>& d, const Vector<T>&) {
          if (target.for_means) {
            store_vector(row, c, d);
          } else {
            target.view.put(to, c, d, target.add);
          }
        });
  }
}

}  // namespace quipu::detail::on_cuda::gated
