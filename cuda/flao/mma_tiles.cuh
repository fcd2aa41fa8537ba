#pragma once
// Tiles of rows in shared memory, for gated linear attention by tensor cores. Rows are copied as
// they are, 16 bytes a cp.async. A tile of unencoded bf16 rows is an operand where it lies; any
// other is encoded in f32 and split into a bf16 tile and a tile of bf16 residuals, 16 bits
// together.
#include "flao.h"
#include "quipu/cuda/tile/angles.cuh"
#include "quipu/cuda/tile/fragments.cuh"
#include "quipu/cuda/tile/functions.cuh"
#include "quipu/cuda/tile/rows.cuh"

namespace quipu::detail::on_cuda::flao_mma {

inline constexpr int widest = flao_widest_on_tensor_cores;
/// Rows of bf16 or f16, or half of the columns of rows of f32.
template <int rows>
using Tile = SwizzledTile<std::uint16_t, widest, rows>;

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

/// How the tokens of units are split among blocks.
struct Split {
  Split(const FlaoParts& all, std::int64_t head_count, std::int64_t token_count)
      : heads(static_cast<int>(head_count)),
        parts(static_cast<int>(all.count)),
        length(static_cast<int>(all.length)),
        tokens(static_cast<int>(token_count)) {}
  int heads, parts, length, tokens;
};

/// A block's part of the tokens of a unit.
struct Part {
  Part() = default;
  __device__ __forceinline__ explicit Part(const Split& all)
      : unit(static_cast<int>(blockIdx.x) / all.parts),
        entry(unit / all.heads),
        head(unit % all.heads),
        first(static_cast<int>(blockIdx.x) % all.parts * all.length),
        end(first + all.length < all.tokens ? first + all.length : all.tokens) {}
  __device__ __forceinline__ int tiles(int rows) const {
    return first < end ? (end - first + rows - 1) / rows : 0;
  }
  /// Where the part's rows begin, in vectors.
  __device__ __forceinline__ int start(const Rows& x) const {
    return entry * x.step[0] + head * x.step[1] + first * x.step[2];
  }
  /// The first of its vectors that this one of `threads` threads fetches.
  template <int threads>
  __device__ __forceinline__ int fetched(const Rows& x) const {
    const int thread = static_cast<int>(threadIdx.x) % threads;
    return start(x) + thread / (widest / 8) * x.step[2] + thread % (widest / 8);
  }
  /// Starts the copies of its rows from number `done` on. As TileLoader, with offsets of 32 bits.
  template <int threads, int rows>
  __device__ __forceinline__ void fetch(const Tile<rows>& tile, const Rows& x, int from, int done,
                                        int features) const {
    constexpr int chunks = Tile<rows>::chunks, step = threads / chunks;
    static_assert(step % 8 == 0);  // all rows of a thread have one swizzle
    const int thread = static_cast<int>(threadIdx.x) % threads, row = thread / chunks,
              chunk = thread % chunks;
    if (step > rows && row >= rows) return;
#pragma unroll
    for (int below = 0; below < rows; below += step) {
      ptx::copy_async<16>(&tile.chunk(row, chunk) + below * chunks,
                          x.data + from + (done + below) * x.step[2],
                          below < (chunk * 8 < features ? end - first - done - row : 0));
    }
  }
  int unit, entry, head, first, end;
};

// ---- elements ----

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

/// Statistics of softmax over a row of a tile, by a warp.
template <class E, int count>
__device__ __forceinline__ RowSoftmax row_softmax(const Tile<count>& tile, int row, int features) {
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  constexpr float least = -std::numeric_limits<float>::infinity();
  float largest = least;
  for (int p = lane; p < features / 2; p += static_cast<int>(warp_size)) {
    const float2 x = unpacked<E>(tile.pair(row, 2 * p));
    largest = math::maximum(largest, math::maximum(x.x, x.y));
  }
  largest = fold_warp(largest, [](float a, float b) { return math::maximum(a, b); });
  float sum = 0;
  for (int p = lane; p < features / 2; p += static_cast<int>(warp_size)) {
    const float2 x = unpacked<E>(tile.pair(row, 2 * p));
    sum += std::exp(x.x - largest) + std::exp(x.y - largest);
  }
  sum = fold_warp(sum, [](float a, float b) { return a + b; });
  return {largest, __fdividef(1.0f, sum)};
}

/// Statistics of softmax over each row of a tile; a warp has a row.
template <class E, int threads, int count>
__device__ __forceinline__ void tile_softmax(const Tile<count>& tile, int features,
                                             RowSoftmax* stats) {
  const int warp = static_cast<int>(threadIdx.x / warp_size);
  for (int row = warp; row < count; row += threads / static_cast<int>(warp_size)) {
    const RowSoftmax sum = row_softmax<E>(tile, row, features);
    if (threadIdx.x % warp_size == 0) stats[row] = sum;
  }
}

/// An operand split into bf16 and bf16 residual.
template <int rows>
struct SplitTile {
  __device__ __forceinline__ bool is_split() const { return low.data != nullptr; }
  Tile<rows> high;
  Tile<rows> low;  // null where bf16 is exact
};

/// Two neighbouring columns.
template <int rows>
__device__ __forceinline__ void put_pair(const SplitTile<rows>& to, int row, int column,
                                         float first, float second) {
  const SplitPair<__nv_bfloat16> split(first, second);
  to.high.pair(row, column) = split.hi;
  to.low.pair(row, column) = split.lo;
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
template <class E, int count>
__device__ __forceinline__ void encode_pair(const Encoding& x, const Tile<count>& tile,
                                            const SplitTile<count>& to, int row, int p,
                                            const RowSoftmax& sum, const float4* sincos) {
  const auto put = [&](int at, float first, float second) {
    put_pair(to, row, 2 * at, first, second);
  };
  const auto pair_at = [&](int at) {
    const float2 raw = unpacked<E>(tile.pair(row, 2 * at));
    return make_float2(activated(x.act, raw.x, sum), activated(x.act, raw.y, sum));
  };
  const float2 a = pair_at(p);
  if (x.kind == LrpeKind::none) return put(p, a.x, a.y);
  const float4 sc = sincos[p];
  const int behind = p + x.width / 4;
  if (x.kind == LrpeKind::cosine) {
    put(p, a.x * sc.x, a.y * sc.z);
    put(behind, a.x * sc.y, a.y * sc.w);
  } else {
    const float2 b = pair_at(behind);
    put(p, a.x * sc.x - b.x * sc.y, a.y * sc.z - b.y * sc.w);
    put(behind, a.x * sc.y + b.x * sc.x, a.y * sc.w + b.y * sc.z);
  }
}

/// Encodes a tile whose first row is `token`; rows from `end` on become zeros. A warp has a row.
template <class E, int threads, int count>
__device__ __forceinline__ void encode(const Encoding& x, const Tile<count>& tile,
                                       const SplitTile<count>& to, const EncodeStats& stats,
                                       int head, int token, int end) {
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int pairs = x.kind == LrpeKind::rotate ? x.features / 4 : x.features / 2;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / warp_size); row < count;
       row += threads / static_cast<int>(warp_size)) {
    if (token + row >= end) {
      for (int p = lane; p < x.width / 2; p += static_cast<int>(warp_size)) {
        put_pair(to, row, 2 * p, 0.0f, 0.0f);
      }
      continue;
    }
    float4* const sincos = stats.sincos + row * sincos_pitch;
    if (x.kind != LrpeKind::none) fill_sincos_row(x.angles, head, token + row, sincos);
    RowSoftmax sum{0.0f, 1.0f};
    if (x.act == Act::softmax) {
      sum = row_softmax<E>(tile, row, x.features);
      if (lane == 0 && stats.sums != nullptr) stats.sums[row] = sum;
    }
    __syncwarp();
#pragma unroll 1
    for (int p = lane; p < pairs; p += static_cast<int>(warp_size)) {
      encode_pair<E>(x, tile, to, row, p, sum, sincos);
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
template <class E, int threads, int count>
__device__ __forceinline__ SplitTile<count> encode_operand(const Encoding& x,
                                                           const Tile<count>& tile,
                                                           const SplitTile<count>& to,
                                                           const EncodeStats& stats, int head,
                                                           int token, int end) {
  const bool plain = x.act == Act::none && x.kind == LrpeKind::none;
  if (plain && std::is_same_v<E, __nv_bfloat16>) return {tile, {nullptr}};
  encode<E, threads>(x, tile, to, stats, head, token, end);
  return to;
}

}  // namespace quipu::detail::on_cuda::flao_mma
