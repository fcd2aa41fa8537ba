#pragma once
// Rows of q, k, v and g on their way into shared memory, encoded, and their gradients on the way
// out. A warp takes whole rows, a lane so many neighbouring features as make 16 bytes of the
// compute type: what a warp brought it may change without a barrier of the block.
#include <cmath>
#include <limits>

#include "angles.cuh"
#include "flao.h"
#include "functions.cuh"
#include "rows.cuh"

namespace quipu::on_cuda {

/// Neighbouring features that a lane takes together.
template <class T>
inline constexpr unsigned vector_width = 16 / sizeof(T);

template <class T>
struct alignas(16) Vector {
  T values[vector_width<T>];
  __device__ __forceinline__ T& operator[](unsigned i) { return values[i]; }
  __device__ __forceinline__ const T& operator[](unsigned i) const { return values[i]; }
};

/// Vectors are moved as what every compiler moves in one piece.
template <class T>
__device__ __forceinline__ Vector<T> load_vector(const T* base, unsigned i) {
  return std::bit_cast<Vector<T>>(reinterpret_cast<const uint4*>(base)[i / vector_width<T>]);
}
template <class T>
__device__ __forceinline__ void store_vector(T* base, unsigned i, const Vector<T>& v) {
  reinterpret_cast<uint4*>(base)[i / vector_width<T>] = std::bit_cast<uint4>(v);
}

__host__ __device__ constexpr unsigned rounded_up(unsigned n, unsigned step) {
  return (n + step - 1) / step * step;
}
/// From one row of a tile to the next: one vector more, so that neighbouring rows begin in
/// different banks.
template <class T>
__host__ __device__ constexpr unsigned pitch_of(unsigned features) {
  return rounded_up(features, vector_width<T>) + vector_width<T>;
}

/// A batch entry and head.
struct FlaoUnit {
  __device__ __forceinline__ FlaoUnit(std::uint32_t unit, std::uint32_t heads)
      : index(unit), entry(unit / heads), head(unit - entry * heads) {}
  std::uint32_t index, entry, head;
};

/// The rows of a view (b, h, tokens, features).
struct FlaoPlace {
  FlaoPlace() = default;
  explicit FlaoPlace(const View& v) {
    if (!v.defined) return;
    data = v.data;
    dtype = v.dtype;
    features = static_cast<std::uint32_t>(v.size(3));
    entry_step = v.stride(0);
    head_step = v.stride(1);
    token_step = v.stride(2);
    feature_step = v.size(3) > 1 ? v.stride(3) : 1;
    packed = has_packed_rows(v, 3);
  }
  __device__ __forceinline__ std::int64_t start(const FlaoUnit& unit, std::uint32_t token) const {
    return unit.entry * entry_step + unit.head * head_step + token * token_step;
  }

  void* data = nullptr;
  DType dtype = DType::f32;
  bool packed = false;  // rows are dense and lie on 16-byte borders
  std::uint32_t features = 0;
  std::int64_t entry_step = 0, head_step = 0, token_step = 0, feature_step = 1;

  /// A vector of the features from c on of the row that begins at `row`; zeros behind the last one.
  template <class T>
  __device__ __forceinline__ Vector<T> load(std::int64_t row, unsigned c) const {
    constexpr unsigned width = vector_width<T>;
    if (packed) {
      if (dtype == dtype_of<T>) {
        return std::bit_cast<Vector<T>>(static_cast<const uint4*>(data)[(row + c) / width]);
      }
      if constexpr (std::is_same_v<T, float>) {
        if (dtype == DType::bf16) return load_reduced<__nv_bfloat16>(row + c);
        if (dtype == DType::f16) return load_reduced<__half>(row + c);
      }
    }
    Vector<T> v;
#pragma unroll
    for (unsigned j = 0; j < width; ++j) {
      v[j] = c + j < features ? load_element<T>(data, dtype, row + (c + j) * feature_step) : T(0);
    }
    return v;
  }

  template <class T>
  __device__ __forceinline__ void put(std::int64_t row, unsigned c, const Vector<T>& v,
                                      bool add) const {
    constexpr unsigned width = vector_width<T>;
    const bool same = compute_type(dtype) == dtype_of<T>;
    if (packed && same) {
      Vector<T> sum = v;
      if (add) {
        const Vector<T> before = load<T>(row, c);
#pragma unroll
        for (unsigned j = 0; j < width; ++j) sum[j] += before[j];
      }
      return put_packed(row + c, sum);
    }
#pragma unroll
    for (unsigned j = 0; j < width; ++j) {
      if (c + j < features) {
        put_element(data, dtype, row + (c + j) * feature_step, v[j], add);
      }
    }
  }

 private:
  template <class E>
  struct alignas(8) Four {
    E elements[4];
  };
  template <class E>
  __device__ __forceinline__ Vector<float> load_reduced(std::int64_t i) const {
    const auto four = std::bit_cast<Four<E>>(static_cast<const uint2*>(data)[i / 4]);
    Vector<float> v;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) v[j] = converted<float>(four.elements[j]);
    return v;
  }
  template <class E>
  __device__ __forceinline__ void put_reduced(std::int64_t i, const Vector<float>& v) const {
    Four<E> four;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) four.elements[j] = converted<E>(v[j]);
    static_cast<uint2*>(data)[i / 4] = std::bit_cast<uint2>(four);
  }
  template <class T>
  __device__ __forceinline__ void put_packed(std::int64_t i, const Vector<T>& v) const {
    if constexpr (std::is_same_v<T, float>) {
      if (dtype == DType::bf16) return put_reduced<__nv_bfloat16>(i, v);
      if (dtype == DType::f16) return put_reduced<__half>(i, v);
    }
    static_cast<uint4*>(data)[i / vector_width<T>] = std::bit_cast<uint4>(v);
  }
};

/// What an activation needs to know of a row or column beside the number itself: of softmax the
/// largest number and the inverse of the sum, and for the way back the mean of the gradient.
template <class T>
struct Softmax {
  T largest{}, inverse{}, mean{};
  __device__ __forceinline__ T of(T x) const { return std::exp(x - largest) * inverse; }
};

template <class T>
__device__ __forceinline__ T activated(Act act, T x, const Softmax<T>& softmax) {
  switch (act) {
    case Act::relu: return apply<Pointwise::relu>(x, T(0), T(0));
    case Act::sigmoid: return apply<Pointwise::sigmoid>(x, T(0), T(0));
    case Act::silu: return apply<Pointwise::silu>(x, T(0), T(0));
    case Act::softmax: return softmax.of(x);
    default: return x;
  }
}
/// The gradient of x from that of the activated number.
template <class T>
__device__ __forceinline__ T activated_back(Act act, T x, T d, const Softmax<T>& softmax) {
  switch (act) {
    case Act::relu: return apply<Pointwise::relu_grad>(d, x, T(0));
    case Act::sigmoid: return apply<Pointwise::sigmoid_grad>(d, x, T(0));
    case Act::silu: return apply<Pointwise::silu_grad>(d, x, T(0));
    case Act::softmax: return softmax.of(x) * (d - softmax.mean);
    default: return d;
  }
}

/// The largest of some numbers and the sum of e^(x - largest), in any order.
template <class T>
struct OnlineSum {
  T largest = -std::numeric_limits<T>::infinity(), sum = T(0);

  __device__ __forceinline__ static T finite(T x) {
    return x == -std::numeric_limits<T>::infinity() ? T(0) : x;
  }
  __device__ __forceinline__ void add(T x) { *this = merged(*this, {x, T(1)}); }
  __device__ __forceinline__ static OnlineSum merged(const OnlineSum& a, const OnlineSum& b) {
    const T most = a.largest > b.largest ? a.largest : b.largest, shift = finite(most);
    return {most, a.sum * std::exp(a.largest - shift) + b.sum * std::exp(b.largest - shift)};
  }
  __device__ __forceinline__ OnlineSum from_lane(int lanes) const {
    return {__shfl_xor_sync(all_lanes, largest, lanes), __shfl_xor_sync(all_lanes, sum, lanes)};
  }
  __device__ __forceinline__ Softmax<T> softmax() const { return {finite(largest), T(1) / sum}; }
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
  /// The same of a row, if softmax goes over the features, found by the warp. value(c) gives the
  /// lane's vector from c on.
  template <class Value>
  __device__ __forceinline__ Softmax<T> row_softmax(unsigned lane, Value value) const {
    if (!over_features) return {};
    constexpr unsigned step = vector_width<T>;
    OnlineSum<T> sum;
    for (unsigned c = lane * step; c < features; c += warp_size * step) {
      const Vector<T> x = value(c);
      for (unsigned j = 0; j < step; ++j) {
        if (c + j < features) sum.add(x[j]);
      }
    }
    return fold_warp(sum, OnlineSum<T>::merged).softmax();
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

inline constexpr unsigned block_warps = block_threads / warp_size;

/// Features as they are, zeros behind the last one and in rows without a token. Several rows are on
/// their way at a time.
template <class T>
__device__ __forceinline__ void load_rows(const FlaoRows<T>& x, const FlaoUnit& unit,
                                          const Tile<T>& tile) {
  constexpr unsigned step = vector_width<T>, batch = 4;
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

template <class T>
__device__ __forceinline__ void activate_row(const FlaoRows<T>& x, const FlaoUnit& unit, T* row) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size;
  const Softmax<T> of_row = x.row_softmax(lane, [&](unsigned c) { return load_vector(row, c); });
  for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
    Vector<T> v = load_vector(row, c);
#pragma unroll
    for (unsigned j = 0; j < step; ++j) {
      const T y = activated(x.act, v[j], x.softmax(unit, c + j, of_row, false));
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

/// Where gradients of x go: to its gradient, or as products with x~ without its turn into the tile,
/// from which the means of softmax over the sequence are made.
struct FlaoTarget {
  FlaoPlace place;
  bool add = false;
  bool measure = false;
};

/// From the gradients of rows of x~ in a tile, which are spent, to those of x.
template <class T>
__device__ __forceinline__ void deliver_rows(const FlaoRows<T>& x, const FlaoUnit& unit,
                                             const Tile<T>& tile, const FlaoTarget& target) {
  constexpr unsigned step = vector_width<T>;
  const unsigned lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
  for (unsigned r = warp; r < tile.valid; r += block_warps) {
    T* const row = tile.row(r);
    const std::uint32_t token = tile.first + r;
    if (x.kind != LrpeKind::none) {
      turn_row_back(x, unit, token, row);
      __syncwarp();
    }
    const std::int64_t from = x.place.start(unit, token), to = target.place.start(unit, token);
    Softmax<T> of_row =
        x.row_softmax(lane, [&](unsigned c) { return x.place.template load<T>(from, c); });
    if (x.over_features) {
      T dot(0);
      for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
        const Vector<T> v = x.place.template load<T>(from, c), d = load_vector(row, c);
        for (unsigned j = 0; j < step; ++j) {
          if (c + j < x.features) dot += of_row.of(v[j]) * d[j];
        }
      }
      of_row.mean = fold_warp(dot, [](T a, T b) { return a + b; });
    }
    for (unsigned c = lane * step; c < x.features; c += warp_size * step) {
      Vector<T> d = load_vector(row, c);
      if (x.act != Act::none) {
        const Vector<T> v = x.place.template load<T>(from, c);
#pragma unroll
        for (unsigned j = 0; j < step; ++j) {
          const Softmax<T> softmax = x.softmax(unit, c + j, of_row, !target.measure);
          d[j] = activated_back(x.act, v[j], d[j], softmax);
        }
      }
      if (target.measure) {
        store_vector(row, c, d);
      } else {
        target.place.put(to, c, d, target.add);
      }
    }
  }
}

}  // namespace quipu::on_cuda
