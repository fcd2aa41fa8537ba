#pragma once
// Products by tensor cores: tiles of 16-bit rows in shared memory, their fragments, and
// asynchronous copies that fill them. A tile has no padding; an XOR swizzle of its 16-byte chunks
// by the row keeps ldmatrix, cp.async and vector accesses free of bank conflicts. In an unrolled
// loop the XOR is with a constant, and all rows of a lane are at constant distances.
#include <cstdint>

#include "block.cuh"
#include "pairs.cuh"

namespace quipu::detail::on_cuda {

/// A thread's warp, and its position in the fragments of an mma (ptx.h).
struct Thread {
  int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int group = lane / 4, member = lane % 4;
};

/// Reduces over the four lanes that share a row of a fragment.
template <class Combine>
__device__ __forceinline__ float fold_fragment_row(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(all_lanes, value, 1));
  return combine(value, __shfl_xor_sync(all_lanes, value, 2));
}

/// Reduces over the eight lanes that share columns of a fragment.
template <class Combine>
__device__ __forceinline__ float fold_fragment_column(float value, Combine combine) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) {
    value = combine(value, __shfl_xor_sync(all_lanes, value, lanes));
  }
  return value;
}

/// A tile of `height` rows of `width` elements in shared memory, aligned to 128 bytes.
template <class Element, int columns, int rows>
struct SwizzledTile {
  using E = Element;
  static constexpr int width = columns, height = rows;
  static constexpr int chunks = width / 8;  // of 16 bytes, in a row
  static constexpr int size = height * chunks;
  static constexpr std::size_t bytes = sizeof(uint4) * size;
  static_assert(chunks % 8 == 0 || chunks == 4);

  __device__ __forceinline__ uint4& chunk(int row, int i) const {
    return data[row * chunks + (i ^ swizzle(row))];
  }
  /// The word of two neighbouring elements.
  __device__ __forceinline__ unsigned& pair(int row, int column) const {
    return reinterpret_cast<unsigned*>(&chunk(row, column >> 3))[column >> 1 & 3];
  }

  // Row and column of a fragment are multiples of 16.
  /// The A fragment of 16 rows and 16 columns.
  __device__ __forceinline__ void load_a(unsigned (&r)[4], int row, int column) const {
    load_lane_rows<false>(r, row, lane() % 16, column, lane() / 16);
  }
  /// The A fragment of the transposed tile: its rows are 16 columns of the tile.
  __device__ __forceinline__ void load_a_transposed(unsigned (&r)[4], int row, int column) const {
    load_lane_rows<true>(r, row, lane() / 16 * 8 + lane() % 8, column, lane() / 8 % 2);
  }
  /// Two B fragments of the tile: k runs over 16 of its rows, n over 16 columns.
  __device__ __forceinline__ void load_b(unsigned (&r)[4], int row, int column) const {
    load_lane_rows<true>(r, row, lane() % 16, column, lane() / 16);
  }
  /// Two B fragments of the transposed tile: n runs over 16 rows of the tile, k over 16 columns.
  __device__ __forceinline__ void load_b_transposed(unsigned (&r)[4], int row, int column) const {
    load_lane_rows<false>(r, row, lane() / 16 * 8 + lane() % 8, column, lane() / 8 % 2);
  }
  /// Fragments of any other arrangement: each lane brings chunk `lane_chunk`, counted from
  /// `column`, of row `of_lane`, counted from `row`, to ldmatrix. Rows are multiples of 8, columns
  /// of 16. Of the swizzle, the lane's part is in the address and that of the column a constant;
  /// tiles are aligned to 128 bytes.
  template <bool transposed, int count>
  __device__ __forceinline__ void load_lane_rows(unsigned (&r)[count], int row, int of_lane,
                                                 int column, int lane_chunk) const {
    const uint4* const from = data + of_lane * chunks + (lane_chunk ^ swizzle(of_lane));
    const int chunk = column >> 3;
    ptx::ldmatrix<count, transposed>(r, from, static_cast<unsigned>((chunk & 7) * 16),
                                     static_cast<unsigned>((row * chunks + (chunk & ~7)) * 16));
  }

  uint4* data;

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// Rows of 128 bytes and more differ in the chunk, shorter ones two by two.
  __device__ __forceinline__ static int swizzle(int row) {
    return chunks == 4 ? row / 2 & 3 : row & 7;
  }
};

/// Starts the copies (cp.async) of all rows of a tile by the threads of a block. `source(row)` is
/// where a row begins in device memory; null makes it zeros, like columns from `features` on. For
/// rows at any distances; it is apart from TileLoader because backward of attention, which has
/// both, spills on sm_120 where one is built on the other.
template <int threads, class Tile, class Source>
__device__ __forceinline__ void fetch_rows(const Tile& tile, int features, Source source) {
  static_assert(Tile::size % threads == 0);
  const int row = static_cast<int>(threadIdx.x) / Tile::chunks,
            chunk = static_cast<int>(threadIdx.x) % Tile::chunks;
#pragma unroll
  for (int i = 0; i < Tile::height; i += threads / Tile::chunks) {
    const auto* const from = source(row + i);
    const bool valid = from != nullptr && chunk * 8 < features;
    ptx::copy_async<16>(&tile.chunk(row + i, chunk), from + (valid ? chunk * 8 : 0), valid);
  }
}

/// Fills tiles with rows that lie `stride` elements apart in memory, tile after tile. It holds a
/// pointer alone: the rest is an argument of the kernel.
template <class Tile, int threads>
class TileLoader {
  using E = typename Tile::E;

 public:
  __device__ __forceinline__ TileLoader(const E* first, std::int64_t stride)
      : next_(first + row() * stride + chunk() * 8) {}
  /// Starts the copies of the next tile; what lies beyond rows or features becomes zeros.
  __device__ __forceinline__ void fetch(const Tile& tile, std::int64_t stride, int rows,
                                        int features) {
    const int left = chunk() * 8 < features ? rows - row() : 0;
#pragma unroll
    for (int i = 0; i < Tile::height; i += rows_at_once) {
      ptx::copy_async<16>(&tile.chunk(row(), chunk()) + i * Tile::chunks, next_, i < left);
      next_ += rows_at_once * stride;
    }
  }

 private:
  static constexpr int rows_at_once = threads / Tile::chunks;
  static_assert(rows_at_once % 8 == 0);  // all rows of a thread have one swizzle
  __device__ __forceinline__ static int row() {
    return static_cast<int>(threadIdx.x) / Tile::chunks;
  }
  __device__ __forceinline__ static int chunk() {
    return static_cast<int>(threadIdx.x) % Tile::chunks;
  }
  const E* next_;
};

/// A loop over tiles whose copies are `ahead` tiles ahead: fetch(t) starts those of tile t, if that
/// exists. Before the loop:
template <int ahead, class Fetch>
__device__ __forceinline__ void fetch_first(Fetch& fetch) {
#pragma unroll
  for (int t = 0; t < ahead; ++t) {
    fetch(t);
    ptx::copy_commit();
  }
}
/// And at the beginning of step t: then the tile is there, and no thread is in an earlier step.
template <int ahead, class Fetch>
__device__ __forceinline__ void fetch_next(int t, Fetch& fetch) {
  ptx::copy_wait<ahead - 1>();
  __syncthreads();
  fetch(t + ahead);
  ptx::copy_commit();
}

/// sums (16 row_tiles, 8 column_tiles) += left right^T over the width of both: rows of `left` from
/// `row` on, rows of `right` from the first.
template <int row_tiles, int column_tiles, class Left, class Right>
__device__ __forceinline__ void add_product_transposed(float (&sums)[row_tiles][column_tiles][4],
                                                       const Left& left, int row,
                                                       const Right& right) {
  // Where accumulators leave few registers, no more fragments ahead than the swizzle has patterns.
#pragma unroll(row_tiles == 1 ? 4 : Left::width / 16)
  for (int c = 0; c < Left::width; c += 16) {
    unsigned a[row_tiles][4];
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) left.load_a(a[t], row + t * 16, c);
#pragma unroll
    for (int j = 0; j < column_tiles; j += 2) {
      unsigned b[4];
      right.load_b_transposed(b, j * 8, c);
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
        mma<typename Left::E>(sums[t][j], a[t], {b[0], b[1]});
        mma<typename Left::E>(sums[t][j + 1], a[t], {b[2], b[3]});
      }
    }
  }
}

/// sums (16 row_tiles, width) += left right, where left are A fragments (16 row_tiles, 16 steps).
template <int row_tiles, int steps, int column_tiles, class Right>
__device__ __forceinline__ void add_product(float (&sums)[row_tiles][column_tiles][4],
                                            const unsigned (&left)[row_tiles][steps][4],
                                            const Right& right) {
#pragma unroll
  for (int j = 0; j < steps; ++j) {
#pragma unroll
    for (int c = 0; c < column_tiles; c += 2) {
      unsigned b[4];
      right.load_b(b, j * 16, c * 8);
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
        mma<typename Right::E>(sums[t][c], left[t][j], {b[0], b[1]});
        mma<typename Right::E>(sums[t][c + 1], left[t][j], {b[2], b[3]});
      }
    }
  }
}

}  // namespace quipu::detail::on_cuda
