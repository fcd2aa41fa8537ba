#pragma once
// Rows of q, k, v and g on their way into shared memory, encoded, and their gradients on the way
// out. A warp takes whole rows: what it brought it may change without a barrier of the block.
#include <cmath>
#include <limits>

#include "angles.cuh"
#include "flao_place.cuh"

namespace quipu::on_cuda::gated {

/// What softmax needs to know of a row or column: the largest number, the inverse of the sum, and
/// for the way back the mean of the gradient.
template <class T>
struct Softmax {
  T largest{}, inverse{}, mean{};
};

/// A number with its activation, and the way back.
template <class T>
struct Activated {
  T value, slope;
  T mean{};
  bool cut = false;

  __device__ __forceinline__ T back(T d) const { return cut ? T(0) : slope * (d - mean); }
};
template <class T>
__device__ __forceinline__ Activated<T> activated(Act act, T x, const Softmax<T>& softmax) {
  if (act == Act::none) return {x, T(1)};
  if (act == Act::relu) return {x <= T(0) ? T(0) : x, T(1), T(0), x <= T(0)};
  const T e = std::exp(act == Act::softmax ? x - softmax.largest : -std::abs(x));
  if (act == Act::softmax) return {e * softmax.inverse, e * softmax.inverse, softmax.mean};
  const T large = T(1) / (T(1) + e), small = e * large;
  const T value = x < T(0) ? small : large, rest = x < T(0) ? large : small;
  if (act == Act::sigmoid) return {value, value * rest};
  return {x * value, value * (T(1) + x * rest)};
}

/// The largest of some numbers and the sum of e^(x - largest), in any order.
template <class T>
struct OnlineSum {
  T largest = -std::numeric_limits<T>::infinity(), sum = T(0);

  __device__ __forceinline__ static T finite(T x) {
    return x == -std::numeric_limits<T>::infinity() ? T(0) : x;
  }
  /// The numbers from c on that lie before `end`.
  __device__ __forceinline__ void add(const Vector<T>& x, unsigned c, unsigned end) {
    T most = largest;
#pragma unroll
    for (unsigned j = 0; j < vector_width<T>; ++j) most = c + j < end && x[j] > most ? x[j] : most;
    const T shift = finite(most);
    sum *= std::exp(largest - shift);
#pragma unroll
    for (unsigned j = 0; j < vector_width<T>; ++j) {
      sum += c + j < end ? std::exp(x[j] - shift) : T(0);
    }
    largest = most;
  }
  __device__ __forceinline__ static OnlineSum merged(const OnlineSum& a, const OnlineSum& b) {
    const T most = a.largest > b.largest ? a.largest : b.largest, shift = finite(most);
    return {most, a.sum * std::exp(a.largest - shift) + b.sum * std::exp(b.largest - shift)};
  }
  __device__ __forceinline__ OnlineSum from_lane(int lanes) const {
    return {__shfl_xor_sync(all_lanes, largest, lanes), __shfl_xor_sync(all_lanes, sum, lanes)};
  }
  __device__ __forceinline__ Softmax<T> softmax() const {
    return {finite(largest), T(1) / sum};
  }
};

/// One of q, k, v, g with its encoding; the values may be missing where only gradients go through.
template <class T>
struct FlaoRows {
  FlaoRows(const View& x, const RowEncoding& encoding, std::int64_t row_features,
           std::int64_t all_tokens, const FlaoColumns& columns)
      : place(x),
        act(encoding.act),
        kind(encoding.theta.defined ? encoding.kind : LrpeKind::none),
        features(static_cast<std::uint32_t>(row_features)),
        width(kind == LrpeKind::cosine ? 2 * features : features),
        tokens(static_cast<std::uint32_t>(all_tokens)),
        over_features(act == Act::softmax && !encoding.over_sequence),
        over_sequence(encoding.has_columns()),
        angles(kind == LrpeKind::none ? RowEncoding() : encoding, row_features, all_tokens) {
    if (!over_sequence) return;
    largest = columns.largest.as<T>();
    inverse = columns.inverse.as<T>();
    mean = columns.mean.as<T>();
  }

  FlaoPlace place;
  Act act;
  LrpeKind kind;
  std::uint32_t features, width, tokens;  // width: of an encoded row
  bool over_features, over_sequence;      // where softmax goes
  RowAngles<T> angles;
  T *largest = nullptr, *inverse = nullptr, *mean = nullptr;  // (units, features)

  /// What the activation needs for feature c, if softmax goes over the sequence, else `row`.
  __device__ __forceinline__ Softmax<T> softmax(const FlaoUnit& unit, unsigned c,
                                                const Softmax<T>& row, bool with_mean) const {
    if (!over_sequence || c >= features) return row;
    const std::int64_t i = static_cast<std::int64_t>(unit.index) * features + c;
    return {largest[i], inverse[i], with_mean ? mean[i] : T(0)};
  }
};

/// Rows of a tile in shared memory that belong to the tokens from `first` on.
template <class T>
struct Tile {
  T* data;
  unsigned pitch;
  unsigned rows;               // of the tile
  std::uint32_t first, valid;  // rows that have a token
  __device__ __forceinline__ T* row(unsigned r) const { return data + r * pitch; }
};

/// One of two tiles of the same rows, member by member: a reference to one of them would keep both
/// in memory.
template <class T>
__device__ __forceinline__ Tile<T> chosen(bool first, const Tile<T>& a, const Tile<T>& b) {
  return {first ? a.data : b.data, first ? a.pitch : b.pitch, a.rows, a.first, a.valid};
}

inline constexpr unsigned block_warps = block_threads / warp_size;

/// Features as they are, zeros behind the last one and in rows without a token. Several rows are on
/// their way at a time.
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
        values[i] = r < tile.valid
                        ? x.place.template load<T>(x.place.start(unit, tile.first + r), c)
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

/// Where softmax goes over features, a row is gone through for the sum, for the mean of the
/// gradient if there is one, and for the result.
enum class Sweep { sum, mean, result };

template <class T>
__device__ __forceinline__ void activate_row(const FlaoRows<T>& x, const FlaoUnit& unit, T* row) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size;
  Softmax<T> of_row;
  if (x.over_features) {
    OnlineSum<T> sum;
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      sum.add(load_vector(row, c), c, x.features);
    }
    of_row = fold_warp(sum, OnlineSum<T>::merged).softmax();
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

/// The features of a row become those of the encoded row.
template <class T>
__device__ __forceinline__ void turn_row(const FlaoRows<T>& x, const FlaoUnit& unit,
                                         std::uint32_t token, T* row) {
  const unsigned lane = threadIdx.x % warp_size, n = x.angles.count;
  for (unsigned i = lane; i < n; i += warp_size) {
    const math::SinCos<T> turn = math::sincos(x.angles.angle(unit.head, token, i));
    const T a = row[i];
    if (x.kind == LrpeKind::cosine) {
      row[i] = a * turn.cos;
      row[n + i] = a * turn.sin;
    } else {
      const T b = row[n + i];
      row[i] = a * turn.cos - b * turn.sin;
      row[n + i] = a * turn.sin + b * turn.cos;
    }
  }
  for (unsigned i = x.width + lane; i < rounded_up(x.width, vector_width<T>); i += warp_size) {
    row[i] = T(0);
  }
}
/// The gradient of the encoded row becomes that of the features.
template <class T>
__device__ __forceinline__ void turn_row_back(const FlaoRows<T>& x, const FlaoUnit& unit,
                                              std::uint32_t token, T* row) {
  const unsigned lane = threadIdx.x % warp_size, n = x.angles.count;
  for (unsigned i = lane; i < n; i += warp_size) {
    const math::SinCos<T> turn = math::sincos(x.angles.angle(unit.head, token, i));
    const T a = row[i], b = row[n + i];
    row[i] = a * turn.cos + b * turn.sin;
    if (x.kind != LrpeKind::cosine) row[n + i] = b * turn.cos - a * turn.sin;
  }
}

/// Rows of x~; those without a token are zeros. A warp brings the rows r with r % block_warps its
/// number; __syncwarp() shows them to its lanes.
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
    turn_row(x, unit, tile.first + r, row);
  }
}

/// Where gradients of x go: to its gradient, or, as products with the activated x, into the tile,
/// of which the means of softmax over the sequence are made.
struct FlaoTarget {
  FlaoPlace place;
  bool add = false;
  bool measure = false;
};

/// Through the activation of a row of x: gradient(c) gives the lane's vector of gradients from c
/// on, result(c, gradients of x, activated x) takes it back. x is read if it is `needed`.
template <class T, class Gradient, class Result>
__device__ __forceinline__ void activate_row_back(const FlaoRows<T>& x, const FlaoUnit& unit,
                                                  std::uint32_t token, bool needed, bool with_means,
                                                  Gradient gradient, Result result) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size;
  const std::int64_t start = x.place.start(unit, token);
  OnlineSum<T> sum;
  Softmax<T> of_row;
  T dot(0);
#pragma unroll 1
  for (int i = x.over_features ? 0 : 2; i < 3; ++i) {
    const Sweep sweep = static_cast<Sweep>(i);
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      Vector<T> v{};
      if (needed) v = x.place.template load<T>(start, c);
      if (sweep == Sweep::sum) {
        sum.add(v, c, x.features);
        continue;
      }
      Vector<T> d = gradient(c);
#pragma unroll
      for (unsigned j = 0; j < step; ++j) {
        const Activated<T> y = activated(x.act, v[j], x.softmax(unit, c + j, of_row, with_means));
        v[j] = y.value;
        dot += c + j < x.features ? y.value * d[j] : T(0);
        d[j] = y.back(d[j]);
      }
      if (sweep == Sweep::result) result(c, d, v);
    }
    if (sweep == Sweep::sum) of_row = fold_warp(sum, OnlineSum<T>::merged).softmax();
    if (sweep == Sweep::mean) of_row.mean = fold_warp(dot, [](T a, T b) { return a + b; });
  }
}

/// From the gradients of rows of x~ in a tile, which are spent, to those of x.
template <class T>
__device__ __forceinline__ void deliver_rows(const FlaoRows<T>& x, const FlaoUnit& unit,
                                             const Tile<T>& tile, const FlaoTarget& target) {
  const unsigned warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < tile.valid; r += block_warps) {
    T* const row = tile.row(r);
    const std::uint32_t token = tile.first + r;
    if (x.kind != LrpeKind::none) {
      turn_row_back(x, unit, token, row);
      __syncwarp();
    }
    const std::int64_t to = target.place.start(unit, token);
    activate_row_back(
        x, unit, token, x.act != Act::none, !target.measure,
        [&](unsigned c) { return load_vector(row, c); },
        [&](unsigned c, const Vector<T>& d, const Vector<T>&) {
          if (target.measure) {
            store_vector(row, c, d);
          } else {
            target.place.put(to, c, d, target.add);
          }
        });
  }
}

}  // namespace quipu::on_cuda::gated
