#pragma once
// What the tensor-core kernels of tensor product attention share. A block of four warps has up to
// 32 heads and rows of up to 128 numbers; it takes entries in tiles of 32. Panels, 32 rows of bk
// and ak or of bv and av, are copied to shared memory as they are. Products with heads: a warp has
// 8 heads and all rows of the tile. f32 intermediates are split into 16 bits (hi) and residual
// (lo), which lie in two tiles, one behind the other.
#include <cmath>

#include "quipu/cuda/tile/fragments.cuh"
#include "tpa_decode.cuh"

namespace quipu::detail::on_cuda::tpa_mma {

inline constexpr int warps = 4, threads = warps * 32;
inline constexpr int rows = 32, most_heads = 32, most_columns = 128;
inline constexpr int query_depth = 32;  // of r, at a time
static_assert(rows == tpa_tile && rows == most_heads);

template <class E>
using Wide = SwizzledTile<E, most_columns, rows>;  // (entry or head, column)
template <class E>
using Narrow = SwizzledTile<E, most_heads, rows>;  // (entry, head)
/// A tile of hi above one of lo.
template <class Tile>
using Split = SwizzledTile<typename Tile::E, Tile::width, 2 * rows>;

/// The heads of a batch entry that a block has.
struct Heads {
  std::int64_t b;
  int first, count;
};

/// Rows of b and of a, in shared memory.
template <class E>
struct Panel {
  static constexpr int size = Wide<E>::size + Narrow<E>::size;
  __device__ __forceinline__ explicit Panel(uint4* data) : b{data}, a{data + Wide<E>::size} {}

  /// Starts the copies of entries [first, first + inside): columns of b from `column` on and the
  /// block's heads of a. Elements outside are 0.
  __device__ __forceinline__ void fetch(const Factor& from_b, const Factor& from_a,
                                        const Heads& heads, std::int64_t first, int rank,
                                        int inside, int column, int columns) const {
    const auto load = [&]<class Tile>(const Tile& tile, const Factor& x, int from, int count) {
      const auto* const start = static_cast<const E*>(x.data) + x.row(heads.b, first, rank) + from;
      TileLoader<Tile, threads>(start, x.step[1]).fetch(tile, x.step[1], inside, count);
    };
    load(b, from_b, column, columns);
    load(a, from_a, heads.first, heads.count);
  }
  /// This lane's elements of ak or av: row 16 i + 8 half + group, two heads of the warp.
  __device__ __forceinline__ float2 factor(const Thread& self, int i, int half) const {
    return unpacked<E>(a.pair(16 * i + 8 * half + self.group, 8 * self.warp + 2 * self.member));
  }

  Wide<E> b;
  Narrow<E> a;
};

/// Stores two heads of a row.
template <class E>
__device__ __forceinline__ void store_split(const Split<Narrow<E>>& to, const Thread& self, int i,
                                            int half, const SplitPair<E>& split) {
  const int row = 16 * i + 8 * half + self.group, head = 8 * self.warp + 2 * self.member;
  to.pair(row, head) = split.hi;
  to.pair(rows + row, head) = split.lo;
}

/// The products of a panel's rows with rows (head, column) of the warp's 8 heads; `heads` is one
/// tile or hi and lo.
template <class E, class Tile>
__device__ __forceinline__ void multiply_heads(float (&products)[2][4], const Wide<E>& panel,
                                               const Tile& heads, const Thread& self, int columns) {
  constexpr int planes = Tile::height / rows;
  const int row = 8 * self.warp + self.lane % 8 + (planes == 1 ? 0 : self.lane / 16 * rows);
#pragma unroll 1  // registers are short
  for (int k = 0; k < columns; k += 16) {
    unsigned right[2 * planes];
    heads.template load_lane_rows<false>(right, 0, row, k, self.lane / 8 % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unsigned left[4];
      panel.load_a(left, 16 * i, k);
#pragma unroll
      for (int p = 0; p < planes; ++p) {
        mma<E>(products[i], left, {right[2 * p], right[2 * p + 1]});
      }
    }
  }
}

/// Queries aq bq of a block's heads, split into hi and residual lo. Each head's are divided by a
/// power of two near their maximum, kept in `query_scale`, so that f16 holds them.
template <class E>
struct Queries {
  const Factor& aq;
  const Factor& bq;
  Heads heads;
  int r, d;
  Split<Wide<E>> split;
  float* aq_scratch;   // query_depth x most_heads
  float* query_scale;  // most_heads, as the next one
  float* largest;

  /// A thread has two columns and 16 heads. The memory of the result holds bq meanwhile.
  __device__ __forceinline__ void make(const Thread& self) const {
    const int column = self.thread % 64 * 2, first = self.thread / 64 * 16;
    float2 q[16] = {};
    for (int start = 0; start < r; start += query_depth) {
      const int count = min(query_depth, r - start);
      __syncthreads();
      load_factors(self, start, count);
      __syncthreads();
      for (int k = 0; k < count && column < d; ++k) {
        const float2 right = bq_at(k, column);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const float left = aq_at(first + i, k);
          q[i].x += left * right.x;
          q[i].y += left * right.y;
        }
      }
    }
    put(self, q, first, column);
  }

  /// Rows [start, start + count) of bq, and these columns of aq.
  __device__ __forceinline__ void load_factors(const Thread& self, int start, int count) const {
    for (int i = self.thread; i < most_heads * query_depth; i += threads) {
      const int head = i / query_depth, k = i % query_depth;
      const bool inside = head < heads.count && k < count;
      aq_scratch[aq_index(head, k)] =
          inside ? aq.template at<float>(aq.row(heads.b, heads.first + head), start + k) : 0.0f;
    }
    constexpr int chunks = Wide<E>::chunks;
    const int chunk = self.thread % chunks;
    for (int k = self.thread / chunks; k < count && 8 * chunk < d; k += threads / chunks) {
      split.chunk(k, chunk) =
          static_cast<const uint4*>(bq.data)[bq.row(heads.b, start + k) / 8 + chunk];
    }
  }
  __device__ __forceinline__ float aq_at(int head, int k) const {
    return aq_scratch[aq_index(head, k)];
  }
  __device__ __forceinline__ float2 bq_at(int k, int column) const {
    return unpacked<E>(split.pair(k, column));
  }

 private:
  /// Skewed, so that neither heads nor columns have bank conflicts.
  __device__ __forceinline__ static int aq_index(int head, int k) {
    return k * most_heads + (head + k) % most_heads;
  }

  __device__ __forceinline__ void put(const Thread& self, const float2 (&q)[16], int first,
                                      int column) const {
    // Each of the two warps that share heads finds the maxima of its columns.
    float* const mine = self.warp % 2 == 0 ? largest : query_scale;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float most = fold_warp(fmaxf(std::abs(q[i].x), std::abs(q[i].y)),
                                   [](float x, float y) { return fmaxf(x, y); });
      if (self.lane == i) mine[first + i] = most;
    }
    __syncthreads();  // bq was read, too
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float lower = 1.0f / power_near(fmaxf(largest[first + i], query_scale[first + i]));
      const SplitPair<E> both(q[i].x * lower, q[i].y * lower);
      if (column < (d + 15) / 16 * 16) {
        split.pair(first + i, column) = both.hi;
        split.pair(most_heads + first + i, column) = both.lo;
      }
    }
    __syncthreads();
    if (self.thread < most_heads) {
      query_scale[self.thread] = power_near(fmaxf(largest[self.thread], query_scale[self.thread]));
    }
  }
  /// The largest power of two that is not above x; 1 where it or its inverse is not a normal f32.
  __device__ __forceinline__ static float power_near(float x) {
    const unsigned exponent = __float_as_uint(x) >> 23;
    return exponent == 0 || exponent > 252 ? 1.0f : __uint_as_float(exponent << 23);
  }
};

/// Whether the tensor-core kernels support the factors.
inline bool supports_mma(const TpaInputs& in) {
  if (!is_reduced(in.aq.dtype) || !in.av.defined || !in.bv.defined) return false;
  const std::int64_t d = in.bq.size(2), e = in.bv.size(3);
  if (d == 0 || e == 0 || d > most_columns || in.ak.size(1) == 0) return false;
  if (in.aq.size(2) == 0 || in.ak.size(2) == 0 || in.av.size(2) == 0) return false;
  for (const View* v : {&in.bq, &in.ak, &in.bk, &in.av, &in.bv}) {
    if (!has_packed_rows(*v, v->dim() - 1)) return false;
  }
  return true;
}

}  // namespace quipu::detail::on_cuda::tpa_mma
