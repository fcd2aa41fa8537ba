#pragma once
// What the kernels of gated linear attention by tensor cores share. Rows come from memory as they
// are, 16 bytes a copy, into tiles of shared memory. A tile whose rows are plain bf16 is multiplied
// where it lies; any other is encoded in f32 and left as two tiles of bf16, which sum up to it to
// 16 bits. So are kv and d_kv, in registers: a warp keeps a strip of 16 columns for all rows of its
// block. Products of two such operands take three multiplications, those with a plain one two: what
// is left out is below 2^-16 of a term.
#include <algorithm>
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
inline constexpr int most_steps = widest / 16;
inline constexpr int strips = widest / 16;
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

/// What enters a product: the tile itself, or what it is encoded to in `room`.
template <class E, int count, int threads>
__device__ __forceinline__ Pieces entered(const Encoding& x, unsigned* tile, const Pieces& room,
                                          const Notes& notes, int head, int token, int end) {
  const bool plain = x.act == Act::none && x.kind == LrpeKind::none;
  if (plain && std::is_same_v<E, __nv_bfloat16>) return {tile, nullptr};
  encode<E, count, threads>(x, tile, room, notes, head, token, end);
  return room;
}

// ---- products ----

/// Where a lane of a warp stands in the fragments of an mma.
struct Lane {
  int index = static_cast<int>(threadIdx.x % warp_size);
  int group = index / 4, member = index % 4;
};

/// The columns of a warp's strip lie in two runs of 8, one in each half of the matrix: then both
/// numbers that an angle turns are in one lane.
__device__ __forceinline__ int strip_column(int strip, int half, int columns) {
  return strip * 8 + half * (columns / 2);
}

/// What is left of a matrix (height, width) in f32, as a tile of so many rows.
template <int threads>
__device__ __forceinline__ void fill_low(unsigned* tile, const float* m, int height, int width) {
  for (int i = static_cast<int>(threadIdx.x); i < height * (widest / 2); i += threads) {
    const int row = i / (widest / 2), pair = i % (widest / 2);
    if (2 * pair >= width) continue;
    const float2 x = reinterpret_cast<const float2*>(m)[row * (width / 2) + pair];
    tile[row * pitch + pair] = Halves(x.x, x.y).low;
  }
}

/// A strip of 16 columns of a dense matrix in f32, or of its transposed, as right operand. What is
/// left of it is in registers, too, or in a tile of the whole matrix that fill_low made.
template <bool low_in_tile>
struct Strip {
  unsigned high[most_steps][2][2] = {};
  unsigned low[low_in_tile ? 1 : most_steps][2][2] = {};

  /// Rows in memory have `row_length` entries; the strip has `depth` rows and is one of as many as
  /// `columns` have.
  template <bool transposed>
  __device__ __forceinline__ void load(const float* m, int row_length, int depth, int strip,
                                       int columns) {
    const Lane lane;
#pragma unroll
    for (int step = 0; step < most_steps; ++step) {
      if (step * 16 >= depth) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = step * 16 + i % 2 * 8 + 2 * lane.member;
        const int column = strip_column(strip, i / 2, columns) + lane.group;
        float2 pair;
        if constexpr (transposed) {
          pair = reinterpret_cast<const float2*>(m)[(column * row_length + row) / 2];
        } else {
          pair = make_float2(m[row * row_length + column], m[(row + 1) * row_length + column]);
        }
        const Halves halves(pair.x, pair.y);
        high[step][i / 2][i % 2] = halves.high;
        if constexpr (!low_in_tile) low[step][i / 2][i % 2] = halves.low;
      }
    }
  }
};

/// sum += 16 rows of a tile times a strip. `low` is where this lane finds what is left of the
/// strip's first step, if that is in a tile.
template <bool transposed, bool low_in_tile>
__device__ __forceinline__ void multiply(float (&sum)[2][4], const Pieces& rows,
                                         const Strip<low_in_tile>& strip, const unsigned* low,
                                         int depth) {
  const int lane = Lane().index, at = lane % 16 * pitch + lane / 16 * 4;
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    if (step * 16 >= depth) continue;
    unsigned a[4], b[4];
    ptx::ldmatrix(a, rows.high + at + step * 8);
    if constexpr (low_in_tile) {
      ptx::ldmatrix<4, !transposed>(b, low + step * (transposed ? 8 : 16 * pitch));
    } else {
      for (int i = 0; i < 4; ++i) b[i] = strip.low[step][i / 2][i % 2];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::mma_bf16(sum[half], a, strip.high[step][half]);
      ptx::mma_bf16(sum[half], a, {b[2 * half], b[2 * half + 1]});
    }
    if (rows.low == nullptr) continue;
    ptx::ldmatrix(a, rows.low + at + step * 8);
    ptx::mma_bf16(sum[0], a, strip.high[step][0]);
    ptx::mma_bf16(sum[1], a, strip.high[step][1]);
  }
}

/// Where a lane finds what is left of its strip's first step in the tile of a matrix.
template <bool transposed>
__device__ __forceinline__ const unsigned* low_of_strip(const unsigned* tile, int strip,
                                                        int columns) {
  const int lane = Lane().index, column = strip_column(strip, lane / 16, columns);
  if constexpr (transposed) return tile + (column + lane % 8) * pitch + lane / 8 % 2 * 4;
  return tile + lane % 16 * pitch + column / 2;
}

template <class E>
__device__ __forceinline__ void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  if constexpr (std::is_same_v<E, __half>) {
    ptx::mma_f16(sum, a, {b0, b1});
  } else {
    ptx::mma_bf16(sum, a, {b0, b1});
  }
}

/// The sum over rows of left^T right, (width, e), by 16 warps: a warp has every fourth of the 16
/// columns of either.
template <class E>
struct OuterSum {
  float sum[2][2][2][4] = {};
  int left_tile = static_cast<int>(threadIdx.x / warp_size % 4);
  int right_tile = static_cast<int>(threadIdx.x / warp_size / 4);

  __device__ __forceinline__ bool has(int i, int j, int width, int e) const {
    return (left_tile + 4 * i) * 16 < width && (right_tile + 4 * j) * 16 < e;
  }

  /// Adds 16 rows.
  __device__ __forceinline__ void add(const Pieces& left, const Pieces& right, int width, int e) {
    add_product(left.high, right.high, width, e);
    if (left.low != nullptr) add_product(left.low, right.high, width, e);
    if (right.low != nullptr) add_product(left.high, right.low, width, e);
  }
  __device__ __forceinline__ void add_product(const unsigned* left, const unsigned* right,
                                              int width, int e) {
    const int lane = Lane().index;
    left += (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 4 + left_tile * 8;
    right += lane % 16 * pitch + lane / 16 * 4 + right_tile * 8;
    unsigned a[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (has(i, 0, width, e)) ptx::ldmatrix<4, true>(a[i], left + i * 32);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!has(0, j, width, e)) continue;
      unsigned b[4];
      ptx::ldmatrix<4, true>(b, right + j * 32);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!has(i, j, width, e)) continue;
        multiply_add<E>(sum[i][j][0], a[i], b[0], b[1]);
        multiply_add<E>(sum[i][j][1], a[i], b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void store(float* to, int width, int e) const {
    const Lane lane;
#pragma unroll
    for (int part = 0; part < 16; ++part) {
      const int i = part / 8, j = part / 4 % 2, half = part / 2 % 2, below = part % 2;
      if (!has(i, j, width, e)) continue;
      const int row = (left_tile + 4 * i) * 16 + lane.group + 8 * below;
      const int column = (right_tile + 4 * j) * 16 + 8 * half + 2 * lane.member;
      reinterpret_cast<float2*>(to)[(row * e + column) / 2] =
          make_float2(sum[i][j][half][2 * below], sum[i][j][half][2 * below + 1]);
    }
  }
};

// ---- on the host ----

/// Whether rows are dense, on 16-byte borders, and not too far from each other.
inline bool takes_layout(const View& v) {
  std::int64_t reach = 0;
  for (int d = 0; d < 3; ++d) reach += (v.size(d) - 1) * std::abs(v.stride(d));
  return has_packed_rows(v, 3) && reach < std::int64_t{1} << 32;
}
inline bool takes_rows(const View& v, DType dtype) {
  return !v.defined || (v.dtype == dtype && v.size(3) % 16 == 0 && takes_layout(v));
}
inline bool takes_encodings(const FlaoEncodings& encodings) {
  for (const RowEncoding* x : {&encodings.q, &encodings.k, &encodings.v, &encodings.g}) {
    if (x->has_columns()) return false;
  }
  return true;
}
/// Whether sizes fit into the kernels' numbers, and there is anything to do.
inline bool takes_sizes(const FlaoSizes& s) {
  constexpr std::int64_t most = std::int64_t{1} << 30;
  return s.width > 0 && s.width <= widest && s.e > 0 && s.e <= widest && s.units > 0 && s.n > 0 &&
         s.m > 0 && s.n < most && s.m < most && s.units * std::max(s.n, s.m) / 64 < most;
}

inline bool is_plain(const RowEncoding& x) {
  return x.act == Act::none && x.kind == LrpeKind::none;
}

/// Where rows are independent: many parts, but not so short that a block would read more of kv than
/// of them.
inline FlaoParts parts_without_sums(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t enough = 2048, shortest = 512, step = 32;
  FlaoParts parts(tokens, units);
  parts.count = std::clamp<std::int64_t>(tokens / shortest, 1, (enough + units - 1) / units);
  parts.length = ((tokens + parts.count - 1) / parts.count + step - 1) / step * step;
  return parts;
}

/// Whether a block of a device can have so much shared memory.
inline bool has_shared(const View& v, std::size_t bytes) {
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, v.device.index());
  return bytes <= static_cast<std::size_t>(most);
}

/// Bytes of so many tiles of so many rows.
constexpr std::size_t tile_bytes(int tiles, int rows) {
  return static_cast<std::size_t>(tiles) * static_cast<std::size_t>(rows * pitch) * 4;
}

/// kv = k~^T v~ (units, width, e).
void multiply_keys(const View& k, const View& v, const View& kv, const FlaoSizes& sizes,
                   const FlaoEncodings& encodings, const FlaoSpace& space);

}  // namespace quipu::on_cuda::flao_mma
