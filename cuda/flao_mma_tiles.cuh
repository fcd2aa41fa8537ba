#pragma once
// Tiles of rows in shared memory, for gated linear attention by tensor cores. Rows come from memory
// as they are, 16 bytes a copy. A tile whose rows are plain bf16 is multiplied where it lies; any
// other is encoded in f32 and left as two tiles of bf16, which sum up to it to 16 bits.
#include <bit>
#include <cstdint>

#include "angles.cuh"
#include "block.cuh"
#include "flao.h"
#include "functions.cuh"
#include "ptx.h"
#include "rows.cuh"

namespace quipu::on_cuda::flao_mma {

inline constexpr int widest = 128;  // features of a row, encoded or not
/// Words of a row of a tile: rows that are read together begin in different banks.
inline constexpr int pitch = widest / 2 + 4;

// ---- what a kernel gets ----

/// Rows (entry, head, token) of dense elements on 16-byte borders.
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

/// Where gradients go, in the type of the input or in f32.
struct GradRows : Rows {
  GradRows() = default;
  explicit GradRows(const Grad& g) : Rows(g.view), wide(g.view.dtype == DType::f32), add(g.add) {}
  bool wide = false, add = false;
};

struct Encoding {
  Encoding(const RowEncoding& x, std::int64_t row_features, std::int64_t tokens)
      : act(x.act),
        kind(x.kind),
        features(static_cast<int>(row_features)),
        width(x.kind == LrpeKind::cosine ? 2 * features : features),
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

/// Neighbours, as they lie in a word.
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

/// Two numbers as bf16, and what is left of them.
struct Halves {
  __device__ __forceinline__ Halves(float first, float second)
      : high(packed<__nv_bfloat16>(first, second)) {
    const float2 near = unpacked<__nv_bfloat16>(high);
    // Nothing is left of infinity.
    low = packed<__nv_bfloat16>(first == near.x ? 0.0f : first - near.x,
                                second == near.y ? 0.0f : second - near.y);
  }
  unsigned high, low;
};

/// What softmax over the features knows of a row.
struct RowSum {
  float largest, inverse;
};

/// As math::logistic, but its division is good to 2 units in the last place of f32 and calls
/// nothing.
__device__ __forceinline__ math::Logistic<float> quick_logistic(float x) {
  const float e = std::exp(-std::abs(x));
  const float large = __fdividef(1.0f, 1.0f + e), small = e * large;
  return {x < 0.0f ? small : large, x < 0.0f ? large : small};
}

__device__ __forceinline__ float activated(Act act, float x, const RowSum& row) {
  if (act == Act::none) return x;
  if (act == Act::relu) return apply<Pointwise::relu>(x, 0.0f, 0.0f);
  if (act == Act::softmax) return std::exp(x - row.largest) * row.inverse;
  const float share = quick_logistic(x).value;
  return act == Act::sigmoid ? share : x * share;
}
/// The gradient of x from that of the activated x; `mean` is for softmax.
__device__ __forceinline__ float activated_back(Act act, float d, float x, const RowSum& row,
                                                float mean) {
  if (act == Act::none) return d;
  if (act == Act::relu) return apply<Pointwise::relu_grad>(d, x, 0.0f);
  if (act == Act::softmax) return std::exp(x - row.largest) * row.inverse * (d - mean);
  const math::Logistic<float> s = quick_logistic(x);
  return d * s.value * (act == Act::sigmoid ? s.rest : 1.0f + x * s.rest);
}

// ---- tiles ----

/// What a thread, one of so many, copies of an input, a tile of `count` rows after the other.
template <int count, int threads>
class Source {
 public:
  __device__ __forceinline__ Source(const Rows& x, const Part& part)
      : next_(part.start(x) + row() * x.step[2] + vector()) {}

  /// The next tile begins to arrive. It has so many rows; zeros follow.
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

/// The largest number of a row of a tile and the sum of exponentials below it, by a warp.
template <class E>
__device__ __forceinline__ RowSum measured(const unsigned* row, int features) {
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

/// What softmax over the features needs of the rows of a tile; a warp takes a row.
template <class E, int count, int threads>
__device__ __forceinline__ void measure(const unsigned* tile, int features, RowSum* found) {
  const int warp = static_cast<int>(threadIdx.x / warp_size);
  for (int row = warp; row < count; row += threads / static_cast<int>(warp_size)) {
    const RowSum sum = measured<E>(tile + row * pitch, features);
    if (threadIdx.x % warp_size == 0) found[row] = sum;
  }
}

/// Two tiles of bf16 that make one of bf16 and what is left.
struct Pieces {
  __device__ __forceinline__ Pieces from_row(int row) const {
    return {high + row * pitch, low == nullptr ? nullptr : low + row * pitch};
  }
  unsigned* high;
  unsigned* low;  // null where nothing is left
};

__device__ __forceinline__ void put_pair(const Pieces& to, int word, float first, float second) {
  const Halves halves(first, second);
  to.high[word] = halves.high;
  to.low[word] = halves.low;
}

/// Vectors of a row of turns: cos and sin of two neighbouring angles each.
inline constexpr int turn_pitch = widest / 4 + 4;
constexpr std::size_t turn_bytes(int rows) {
  return static_cast<std::size_t>(rows * turn_pitch) * 16;
}

/// Where encoding leaves what the way back needs, too.
struct Notes {
  float4* turns;  // may be null where nothing is turned
  RowSum* sums;   // of the rows, for softmax; may be null
};

__device__ __forceinline__ void find_turns(const RowAngles<float>& angles, int head, int token,
                                           float4* turns) {
#pragma unroll 1
  for (auto i = threadIdx.x % warp_size; i < angles.count; i += warp_size) {
    const math::SinCos<float> turn = math::sincos(
        angles.angle(static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(token), i));
    reinterpret_cast<float2*>(turns)[i] = make_float2(turn.cos, turn.sin);
  }
}

/// A pair of neighbours of a row, encoded.
template <class E>
__device__ __forceinline__ void encode_pair(const Encoding& x, const unsigned* row,
                                            const Pieces& to, int p, const RowSum& sum,
                                            const float4* turns) {
  const auto pair_at = [&](int at) {
    const float2 raw = unpacked<E>(row[at]);
    return make_float2(activated(x.act, raw.x, sum), activated(x.act, raw.y, sum));
  };
  const float2 a = pair_at(p);
  if (x.kind == LrpeKind::none) return put_pair(to, p, a.x, a.y);
  const float4 turn = turns[p];
  const int behind = p + x.width / 4;
  if (x.kind == LrpeKind::cosine) {
    put_pair(to, p, a.x * turn.x, a.y * turn.z);
    put_pair(to, behind, a.x * turn.y, a.y * turn.w);
  } else {
    const float2 b = pair_at(behind);
    put_pair(to, p, a.x * turn.x - b.x * turn.y, a.y * turn.z - b.y * turn.w);
    put_pair(to, behind, a.x * turn.y + b.x * turn.x, a.y * turn.w + b.y * turn.z);
  }
}

/// Encodes a tile whose first row is `token`; rows from `end` on give zeros. A warp takes a row.
template <class E, int count, int threads>
__device__ __forceinline__ void encode(const Encoding& x, const unsigned* tile, const Pieces& to,
                                       const Notes& notes, int head, int token, int end) {
  const int lane = static_cast<int>(threadIdx.x % warp_size);
  const int pairs = x.kind == LrpeKind::rotate ? x.features / 4 : x.features / 2;
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / warp_size); row < count;
       row += threads / static_cast<int>(warp_size)) {
    const Pieces out = to.from_row(row);
    if (token + row >= end) {
      for (int p = lane; p < x.width / 2; p += static_cast<int>(warp_size)) {
        put_pair(out, p, 0.0f, 0.0f);
      }
      continue;
    }
    float4* const turns = notes.turns + row * turn_pitch;
    if (x.kind != LrpeKind::none) find_turns(x.angles, head, token + row, turns);
    RowSum sum{0.0f, 1.0f};
    if (x.act == Act::softmax) {
      sum = measured<E>(tile + row * pitch, x.features);
      if (lane == 0 && notes.sums != nullptr) notes.sums[row] = sum;
    }
    __syncwarp();
#pragma unroll 1
    for (int p = lane; p < pairs; p += static_cast<int>(warp_size)) {
      encode_pair<E>(x, tile + row * pitch, out, p, sum, turns);
    }
  }
}

/// Turns of all rows of a tile, where the way back needs them and there is nothing to encode.
template <int count, int threads>
__device__ __forceinline__ void find_all_turns(const Encoding& x, float4* turns, int head,
                                               int token) {
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x / warp_size); row < count;
       row += threads / static_cast<int>(warp_size)) {
    find_turns(x.angles, head, token + row, turns + row * turn_pitch);
  }
}

/// What enters a product: the tile itself, or what it is encoded to in `room`.
template <class E, int count, int threads>
__device__ __forceinline__ Pieces entered(const Encoding& x, unsigned* tile, const Pieces& room,
                                          const Notes& notes, int head, int token, int end) {
  const bool plain = x.act == Act::none && x.kind == LrpeKind::none;
  if (plain && std::is_same_v<E, __nv_bfloat16>) return {tile, nullptr};
  encode<E, count, threads>(x, tile, room, notes, head, token, end);
  return room;
}

}  // namespace quipu::on_cuda::flao_mma
