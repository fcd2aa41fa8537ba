#pragma once
// Tiles of rows in shared memory, for gated linear attention by tensor cores. Rows are copied as
// they are, 16 bytes a cp.async. A tile of unencoded bf16 rows is an operand where it lies; any
// other is encoded in f32 and split into a bf16 tile and a tile of bf16 residuals, 16 bits
// together.
#include <bit>
#include <cstdint>

#include "flao.h"
#include "quipu/cuda/ptx.h"
#include "quipu/cuda/tile/angles.cuh"
#include "quipu/cuda/tile/block.cuh"
#include "quipu/cuda/tile/functions.cuh"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda::flao_mma {

inline constexpr int widest = flao_widest_on_tensor_cores;
/// Words from row to row of a tile; the padding avoids bank conflicts.
inline constexpr int pitch = widest / 2 + 4;

// ---- what a kernel gets ----

/// Rows (batch entry, head, token) of dense elements, aligned to 16 bytes.
struct Rows {
  Rows() = default;
  explicit Rows(const View& v) {
    if (!v.defined) return;
    data = v.as<uint4>();
    const auto width = static_cast<std::int64_t>(16 / size_of(v.dtype));
    for (int d = 0; d < 3; ++d) {
      step[d] = v.size(d) == 1 ? 0 : static_cast<int>(v.stride(d) / width);
    }
  }
  uint4* data = nullptr;
  int step[3] = {};  // in vectors of 16 bytes
};

/// Rows of a gradient, in the type of the input or (`wide`) in f32.
struct GradRows : Rows {
  GradRows() = default;
  explicit GradRows(const Grad& g) : Rows(g.view), wide(g.view.dtype == DType::f32), add(g.add) {}
  bool wide = false, add = false;
};

struct Encoding {
  Encoding(const RowTransform& x, std::int64_t row_features, std::int64_t tokens)
      : act(x.act),
        kind(x.kind),
        features(static_cast<int>(row_features)),
        width(encoded_features(x.kind, features)),
        angles(x, row_features, tokens) {}
  Act act;
  LrpeKind kind;
  int features, width;
  RowAngles<float> angles;
};

/// A block's part of the tokens of a unit.
struct Part {
  __device__ __forceinline__ Part(int heads, int parts, int length, int tokens)
      : unit(static_cast<int>(blockIdx.x) / parts),
        part(static_cast<int>(blockIdx.x) % parts),
        entry(unit / heads),
        head(unit % heads),
        first(part * length),
        end(first + length < tokens ? first + length : tokens) {}
  __device__ __forceinline__ int tiles(int rows) const {
    return first < end ? (end - first + rows - 1) / rows : 0;
  }
  /// Where the part's rows begin, in vectors.
  __device__ __forceinline__ int start(const Rows& x) const {
    return entry * x.step[0] + head * x.step[1] + first * x.step[2];
  }
  int unit, part, entry, head, first, end;
};

// ---- elements ----

/// Two neighbouring elements in a word.
template <class E>
struct Pair {
  E first, second;
};

template <class E>
__device__ __forceinline__ float2 unpacked(unsigned word) {
  if constexpr (std::is_same_v<E, __half>) {
    const auto pair = std::bit_cast<Pair<E>>(word);
    return make_float2(__half2float(pair.first), __half2float(pair.second));
  } else {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
  }
}
template <class E>
__device__ __forceinline__ unsigned packed(float first, float second) {
  if constexpr (std::is_same_v<E, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return std::bit_cast<unsigned>(Pair<E>{pair.x, pair.y});
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return std::bit_cast<unsigned>(Pair<E>{pair.x, pair.y});
  }
}

/// Two numbers as bf16, and the bf16 residuals x - bf16(x).
struct SplitPair {
  __device__ __forceinline__ SplitPair(float first, float second)
      : high(packed<__nv_bfloat16>(first, second)) {
    const float2 near = unpacked<__nv_bfloat16>(high);
    // The residual of infinity is 0, not NaN.
    low = packed<__nv_bfloat16>(first == near.x ? 0.0f : first - near.x,
                                second == near.y ? 0.0f : second - near.y);
  }
  unsigned high, low;
};

/// Statistics of softmax over the features of a row: maximum, and inverse of the sum of
/// exponentials.
struct RowSoftmax {
  float largest, inverse;
};

/// As math::logistic, but with the fast division, good to 2 units in the last place, which is no
/// function call.
__device__ __forceinline__ math::Logistic<float> quick_logistic(float x) {
  const float e = std::exp(-std::abs(x));
  const float large = __fdividef(1.0f, 1.0f + e), small = e * large;
  return {x < 0.0f ? small : large, x < 0.0f ? large : small};
}

__device__ __forceinline__ float activated(Act act, float x, const RowSoftmax& row) {
  if (act == Act::none) return x;
  if (act == Act::relu) return apply<Pointwise::relu>(x, 0.0f, 0.0f);
  if (act == Act::softmax) return std::exp(x - row.largest) * row.inverse;
  const float share = quick_logistic(x).value;
  return act == Act::sigmoid ? share : x * share;
}
/// The gradient of x from that of the activated x; `mean` is for softmax.
__device__ __forceinline__ float activation_slope(Act act, float d, float x, const RowSoftmax& row,
                                                  float mean) {
  if (act == Act::none) return d;
  if (act == Act::relu) return apply<Pointwise::relu_grad>(d, x, 0.0f);
  if (act == Act::softmax) return std::exp(x - row.largest) * row.inverse * (d - mean);
  const math::Logistic<float> s = quick_logistic(x);
  return d * s.value * (act == Act::sigmoid ? s.rest : 1.0f + x * s.rest);
}

// ---- tiles ----

/// Loads tiles of `count` rows of an input, one after the other, by cp.async of `threads` threads.
template <int count, int threads>
class TileLoader {
 public:
  __device__ __forceinline__ TileLoader(const Rows& x, const Part& part)
      : next_(part.start(x) + row() * x.step[2] + vector()) {}

  /// Starts the copies of the next tile, which has `rows` rows; the others become zeros.
  __device__ __forceinline__ void fetch(unsigned* tile, const Rows& x, int rows, int features) {
#pragma unroll
    for (int i = 0; i < count; i += rows_at_once) {
      if (row() + i >= count || vector() * 8 >= features) continue;
      ptx::copy_async<16>(tile + (row() + i) * pitch + vector() * 4, x.data + next_ + i * x.step[2],
                          row() + i < rows);
    }
    next_ += count * x.step[2];
  }

 private:
  static constexpr int vectors = widest / 8, rows_at_once = threads / vectors;
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) % threads / vectors;
  }
  __device__ __forceinline__ static int vector() {
    return static_cast<int>(threadIdx.x) % vectors;
  }
  int next_;  // in vectors
};

/// Statistics of softmax over a row of a tile, by a warp.
template <class E>
__device__ __forceinline__ RowSoftmax row_softmax(const unsigned* row, int features) {
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  constexpr float least = -std::numeric_limits<float>::infinity();
  float largest = least;
  for (int p = lane; p < features / 2; p += static_cast<int>(warp_size)) {
    const float2 x = unpacked<E>(row[p]);
    largest = math::maximum(largest, math::maximum(x.x, x.y));
  }
  largest = fold_warp(largest, [](float a, float b) { return math::maximum(a, b); });
  float sum = 0;
  for (int p = lane; p < features / 2; p += static_cast<int>(warp_size)) {
    const float2 x = unpacked<E>(row[p]);
    sum += std::exp(x.x - largest) + std::exp(x.y - largest);
  }
  sum = fold_warp(sum, [](float a, float b) { return a + b; });
  return {largest, __fdividef(1.0f, sum)};
}

/// Statistics of softmax over each row of a tile; a warp has a row.
template <class E, int count, int threads>
__device__ __forceinline__ void tile_softmax(const unsigned* tile, int features,
                                             RowSoftmax* stats) {
  const int warp = static_cast<int>(threadIdx.x / warp_size);
  for (int row = warp; row < count; row += threads / static_cast<int>(warp_size)) {
    const RowSoftmax sum = row_softmax<E>(tile + row * pitch, features);
    if (threadIdx.x % warp_size == 0) stats[row] = sum;
  }
}

/// An operand tile split into bf16 and bf16 residual.
struct SplitTile {
  __device__ __forceinline__ SplitTile from_row(int row) const {
    return {high + row * pitch, low == nullptr ? nullptr : low + row * pitch};
  }
  unsigned* high;
  unsigned* low;  // null where bf16 is exact
};

__device__ __forceinline__ void put_pair(const SplitTile& to, int word, float first, float second) {
  const SplitPair split(first, second);
  to.high[word] = split.high;
  to.low[word] = split.low;
}

/// float4 from row to row of the sin/cos table: cos and sin of two neighbouring angles each.
inline constexpr int sincos_pitch = widest / 4 + 4;
constexpr std::size_t sincos_bytes(int rows) {
  return static_cast<std::size_t>(rows * sincos_pitch) * 16;
}

/// What encoding a tile computes beside it; backward uses it again.
struct EncodeStats {
  float4* sincos;    // sin/cos table; null without position encoding
  RowSoftmax* sums;  // softmax statistics of the rows; null where nobody needs them
};

__device__ __forceinline__ void fill_sincos_row(const RowAngles<float>& angles, int head, int token,
                                                float4* sincos) {
#pragma unroll 1
  for (auto i = threadIdx.x % warp_size; i < angles.count; i += warp_size) {
    const math::SinCos<float> sc = math::sincos(
        angles.angle(static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(token), i));
    reinterpret_cast<float2*>(sincos)[i] = make_float2(sc.cos, sc.sin);
  }
}

/// Encodes a pair of neighbouring features of a row, and its partner of a rotation.
template <class E>
__device__ __forceinline__ void encode_pair(const Encoding& x, const unsigned* row,
                                            const SplitTile& to, int p, const RowSoftmax& sum,
                                            const float4* sincos) {
  const auto pair_at = [&](int at) {
    const float2 raw = unpacked<E>(row[at]);
    return make_float2(activated(x.act, raw.x, sum), activated(x.act, raw.y, sum));
  };
  const float2 a = pair_at(p);
  if (x.kind == LrpeKind::none) return put_pair(to, p, a.x, a.y);
  const float4 sc = sincos[p];
  const int behind = p + x.width / 4;
  if (x.kind == LrpeKind::cosine) {
    put_pair(to, p, a.x * sc.x, a.y * sc.z);
    put_pair(to, behind, a.x * sc.y, a.y * sc.w);
  } else {
    const float2 b = pair_at(behind);
    put_pair(to, p, a.x * sc.x - b.x * sc.y, a.y * sc.z - b.y * sc.w);
    put_pair(to, behind, a.x * sc.y + b.x * sc.x, a.y * sc.w + b.y * sc.z);
  }
}

/// Encodes a tile whose first row is `token`; rows from `end` on become zeros. A warp has a row.
template <class E, int count, int threads>
__device__ __forceinline__ void encode(const Encoding& x, const unsigned* tile, const SplitTile& to,
                                       const EncodeStats& stats, int head, int token, int end) {
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int pairs = x.kind == LrpeKind::rotate ? x.features / 4 : x.features / 2;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / warp_size); row < count;
       row += threads / static_cast<int>(warp_size)) {
    const SplitTile out = to.from_row(row);
    if (token + row >= end) {
      for (int p = lane; p < x.width / 2; p += static_cast<int>(warp_size)) {
        put_pair(out, p, 0.0f, 0.0f);
      }
      continue;
    }
    float4* const sincos = stats.sincos + row * sincos_pitch;
    if (x.kind != LrpeKind::none) fill_sincos_row(x.angles, head, token + row, sincos);
    RowSoftmax sum{0.0f, 1.0f};
    if (x.act == Act::softmax) {
      sum = row_softmax<E>(tile + row * pitch, x.features);
      if (lane == 0 && stats.sums != nullptr) stats.sums[row] = sum;
    }
    __syncwarp();
#pragma unroll 1
    for (int p = lane; p < pairs; p += static_cast<int>(warp_size)) {
      encode_pair<E>(x, tile + row * pitch, out, p, sum, sincos);
    }
  }
}

/// The sin/cos table of a tile, where backward needs it without the encoded rows.
template <int count, int threads>
__device__ __forceinline__ void fill_sincos_tile(const Encoding& x, float4* sincos, int head,
                                                 int token) {
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / warp_size); row < count;
       row += threads / static_cast<int>(warp_size)) {
    fill_sincos_row(x.angles, head, token + row, sincos + row * sincos_pitch);
  }
}

/// The operand of a product: the tile itself if it needs no encoding, else the encoded tile in
/// `to`.
template <class E, int count, int threads>
__device__ __forceinline__ SplitTile encode_operand(const Encoding& x, unsigned* tile,
                                                    const SplitTile& to, const EncodeStats& stats,
                                                    int head, int token, int end) {
  const bool plain = x.act == Act::none && x.kind == LrpeKind::none;
  if (plain && std::is_same_v<E, __nv_bfloat16>) return {tile, nullptr};
  encode<E, count, threads>(x, tile, to, stats, head, token, end);
  return to;
}

}  // namespace quipu::detail::on_cuda::flao_mma
