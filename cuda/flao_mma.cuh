#pragma once
// The products of gated linear attention by tensor cores, and where they apply. kv and d_kv enter
// as two halves, like encoded rows: a warp keeps a strip of 16 columns for all rows of its block.
// Products of two such operands take three multiplications, those with a plain one two: what is
// left out is below 2^-16 of a term.
#include <algorithm>

#include "flao_mma_tiles.cuh"

namespace quipu::on_cuda::flao_mma {

inline constexpr int most_steps = widest / 16;
inline constexpr int strips = widest / 16;

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
