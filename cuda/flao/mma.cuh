#pragma once
// The products of gated linear attention by tensor cores, and which calls they support. kv and d_kv
// are f32 and enter as bf16 plus bf16 residual, like encoded rows: a warp keeps the B fragments of
// a strip of 16 columns for all rows of its block. Products of two split operands take three mma
// (hi hi, hi lo, lo hi), those with a plain operand two: the term lo lo, which is left out, is
// below 2^-16 of the product.
#include <algorithm>

#include "mma_tiles.cuh"
#include "quipu/cuda/runtime/devices.h"

namespace quipu::detail::on_cuda::flao_mma {

inline constexpr int most_steps = widest / 16;
inline constexpr int strips = widest / 16;

// ---- products ----

/// The columns of a warp's strip are two runs of 8, one in each half of the matrix: then both
/// features that an angle rotates are in one lane.
__device__ __forceinline__ int strip_column(int strip, int half, int columns) {
  return strip * 8 + half * (columns / 2);
}

/// The bf16 residual of an f32 matrix (height, width), in shared memory.
template <int threads>
__device__ __forceinline__ void fill_residual(const Tile<widest>& tile, const float* m, int height,
                                              int width) {
  for (int i = static_cast<int>(threadIdx.x); i < height * (widest / 2); i += threads) {
    const int row = i / (widest / 2), pair = i % (widest / 2);
    if (2 * pair >= width) continue;
    const float2 x = reinterpret_cast<const float2*>(m)[row * (width / 2) + pair];
    tile.pair(row, 2 * pair) = SplitPair<__nv_bfloat16>(x.x, x.y).lo;
  }
}

/// B fragments of a strip of 16 columns of a dense f32 matrix or of its transpose, as bf16. The
/// residual is in registers, too, or in the tile of the whole matrix that fill_residual made.
template <bool residual_in_tile>
struct Strip {
  unsigned high[most_steps][2][2] = {};
  unsigned low[residual_in_tile ? 1 : most_steps][2][2] = {};

  /// Rows in memory have `row_length` entries. The strip is (depth, 16), one of the strips of
  /// `columns` columns.
  template <bool transposed>
  __device__ __forceinline__ void load(const float* m, int row_length, int depth, int strip,
                                       int columns) {
    const Thread self;
#pragma unroll
    for (int step = 0; step < most_steps; ++step) {
      if (step * 16 >= depth) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = step * 16 + i % 2 * 8 + 2 * self.member;
        const int column = strip_column(strip, i / 2, columns) + self.group;
        float2 pair;
        if constexpr (transposed) {
          pair = reinterpret_cast<const float2*>(m)[(column * row_length + row) / 2];
        } else {
          pair = make_float2(m[row * row_length + column], m[(row + 1) * row_length + column]);
        }
        const SplitPair<__nv_bfloat16> split(pair.x, pair.y);
        high[step][i / 2][i % 2] = split.hi;
        if constexpr (!residual_in_tile) low[step][i / 2][i % 2] = split.lo;
      }
    }
  }
};

/// The B fragments of a step of a strip, from the tile of the whole matrix.
template <bool transposed>
__device__ __forceinline__ void load_strip(unsigned (&b)[4], const Tile<widest>& tile, int step,
                                           int strip, int columns) {
  const int lane = Thread().lane, column = strip_column(strip, lane / 16, columns);
  if constexpr (transposed) {
    tile.load_lane_rows<false>(b, 0, column + lane % 8, step * 16, lane / 8 % 2);
  } else {
    tile.load_lane_rows<true>(b, step * 16, lane % 16, 0, column / 8);
  }
}

/// sum += 16 rows of a tile times strip number `index` of the strips of `columns` columns. `low` is
/// the residual of the matrix, if that is in a tile.
template <bool transposed, bool residual_in_tile, int count>
__device__ __forceinline__ void multiply(float (&sum)[2][4], const SplitTile<count>& rows, int row,
                                         const Strip<residual_in_tile>& strip,
                                         const Tile<widest>& low, int index, int columns,
                                         int depth) {
#pragma unroll
  for (int step = 0; step < most_steps; ++step) {
    if (step * 16 >= depth) continue;
    unsigned a[4], b[4];
    rows.high.load_a(a, row, step * 16);
    if constexpr (residual_in_tile) {
      load_strip<transposed>(b, low, step, index, columns);
    } else {
      for (int i = 0; i < 4; ++i) b[i] = strip.low[step][i / 2][i % 2];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ptx::mma_bf16(sum[half], a, strip.high[step][half]);
      ptx::mma_bf16(sum[half], a, {b[2 * half], b[2 * half + 1]});
    }
    if (!rows.is_split()) continue;
    rows.low.load_a(a, row, step * 16);
    ptx::mma_bf16(sum[0], a, strip.high[step][0]);
    ptx::mma_bf16(sum[1], a, strip.high[step][1]);
  }
}

/// Accumulators of left^T right (width, e), summed over rows by 16 warps. A warp has every fourth
/// 16-column tile of either side.
template <class E>
struct OuterProduct {
  float sum[2][2][2][4] = {};
  int left_tile = static_cast<int>(threadIdx.x / warp_size % 4);
  int right_tile = static_cast<int>(threadIdx.x / warp_size / 4);

  __device__ __forceinline__ bool has(int i, int j, int width, int e) const {
    return (left_tile + 4 * i) * 16 < width && (right_tile + 4 * j) * 16 < e;
  }

  /// Adds 16 rows.
  template <int count>
  __device__ __forceinline__ void add(const SplitTile<count>& left, const SplitTile<count>& right,
                                      int row, int width, int e) {
    add_product(left.high, right.high, row, width, e);
    if (left.is_split()) add_product(left.low, right.high, row, width, e);
    if (right.is_split()) add_product(left.high, right.low, row, width, e);
  }
  template <int count>
  __device__ __forceinline__ void add_product(const Tile<count>& left, const Tile<count>& right,
                                              int row, int width, int e) {
    unsigned a[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (has(i, 0, width, e)) left.load_a_transposed(a[i], row, (left_tile + 4 * i) * 16);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!has(0, j, width, e)) continue;
      unsigned b[4];
      right.load_b(b, row, (right_tile + 4 * j) * 16);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!has(i, j, width, e)) continue;
        mma<E>(sum[i][j][0], a[i], {b[0], b[1]});
        mma<E>(sum[i][j][1], a[i], {b[2], b[3]});
      }
    }
  }

  __device__ __forceinline__ void store(float* to, int width, int e) const {
    const Thread self;
#pragma unroll
    for (int part = 0; part < 16; ++part) {
      const int i = part / 8, j = part / 4 % 2, half = part / 2 % 2, below = part % 2;
      if (!has(i, j, width, e)) continue;
      const int row = (left_tile + 4 * i) * 16 + self.group + 8 * below;
      const int column = (right_tile + 4 * j) * 16 + 8 * half + 2 * self.member;
      reinterpret_cast<float2*>(to)[(row * e + column) / 2] =
          make_float2(sum[i][j][half][2 * below], sum[i][j][half][2 * below + 1]);
    }
  }
};

// ---- on the host ----

/// Whether rows are dense, aligned to 16 bytes, and offsets in vectors fit into an int.
inline bool supports_layout(const View& v) {
  std::int64_t reach = 0;
  for (int d = 0; d < 3; ++d) reach += (v.size(d) - 1) * std::abs(v.stride(d));
  return has_packed_rows(v, 3) && reach < std::int64_t{1} << 32;
}
inline bool supports_rows(const View& v, DType dtype) {
  return !v.defined || (v.dtype == dtype && supports_layout(v));
}

inline bool is_plain(const RowTransform& x) {
  return x.act == Act::none && x.kind == LrpeKind::none;
}

/// Whether rows of a type are operands only after they were encoded or split.
inline bool are_encoded(DType dtype, const RowTransform& x, const RowTransform& y) {
  return dtype == f16 || !is_plain(x) || !is_plain(y);
}

/// Parts of kernels that sum nothing over tokens: many, but long enough that a block reads more of
/// its rows than of kv.
inline FlaoParts parts_without_sums(std::int64_t tokens, std::int64_t units) {
  constexpr std::int64_t enough = 2048, shortest = 512, step = 32;
  FlaoParts parts(tokens, units);
  parts.count = std::clamp<std::int64_t>(tokens / shortest, 1, (enough + units - 1) / units);
  parts.length = ((tokens + parts.count - 1) / parts.count + step - 1) / step * step;
  return parts;
}

/// Whether a block can have `bytes` of shared memory on the device of v. Backward of encoded rows
/// needs 124 KiB, which cards with 99 KiB a block do not have: there the general kernels run, which
/// sum in another order.
inline bool has_shared(const View& v, std::size_t bytes) {
  return bytes <= shared_bytes_of_block(v.device.index());
}

/// kv = k~^T v~ (units, width, e).
void multiply_keys(const View& k, const View& v, const View& kv, const FlaoSizes& sizes,
                   const FlaoTransforms& transforms, const FlaoWorkspace& workspace);

}  // namespace quipu::detail::on_cuda::flao_mma
