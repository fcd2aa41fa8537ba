#pragma once
// What the tensor-core kernels of tensor product attention share. A block of four warps has up to
// 32 heads and rows of up to 128 numbers; it takes entries in tiles of 32. Panels, 32 rows of bk
// and ak or of bv and av, are copied to shared memory as they are, without padding; an XOR swizzle
// of 16-byte chunks avoids bank conflicts. Products with heads: a warp has 8 heads and all rows of
// the tile. f32 intermediates are split into 16 bits (hi) and residual (lo).
#include <cmath>

#include "quipu/cuda/tile/pairs.cuh"
#include "tpa_decode.cuh"

namespace quipu::detail::on_cuda::tpa_mma {

inline constexpr int warps = 4, threads = warps * 32;
inline constexpr int rows = 32, most_heads = 32, most_columns = 128;
inline constexpr int wide_chunks = most_columns / 8, narrow_chunks = most_heads / 8;  // of a row
inline constexpr int panel_chunks = rows * (wide_chunks + narrow_chunks);
inline constexpr int query_depth = 32;  // of r, at a time
static_assert(rows == tpa_tile);

/// XOR swizzle: the index of a 16-byte chunk in rows of 256 bytes, and in rows of 64.
__device__ __forceinline__ int wide_swizzle(int row, int chunk) {
  return row * wide_chunks + (chunk ^ (row & 7));
}
__device__ __forceinline__ int narrow_swizzle(int row, int chunk) {
  return row * narrow_chunks + (chunk ^ (row >> 1 & 3));
}

/// A thread, its warp and its position in the fragments of an mma (ptx.h).
struct Thread {
  int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int group = lane / 4, member = lane % 4;
};

/// The heads of a batch entry that a block has.
struct Heads {
  std::int64_t b;
  int first, count;
};

/// Starts the copies of entries [first, first + inside): columns of b from `column` on and the
/// block's heads of a. Elements outside are 0.
__device__ __forceinline__ void fetch_panel(uint4* panel, const Factor& b, const Factor& a,
                                            const Heads& heads, std::int64_t first, int rank,
                                            int inside, int column, int columns) {
  const int row = static_cast<int>(threadIdx.x) / wide_chunks, chunk = threadIdx.x % wide_chunks;
  if (chunk < (columns + 15) / 16 * 2) {
#pragma unroll
    for (int i = 0; i < rows; i += threads / wide_chunks) {
      const bool valid = row + i < inside && 8 * chunk < columns;
      const std::int64_t at =
          valid ? (b.row(heads.b, first + row + i, rank) + column) / 8 + chunk : 0;
      ptx::copy_async<16>(panel + wide_swizzle(row + i, chunk),
                          static_cast<const uint4*>(b.data) + at, valid);
    }
  }
  const int of_a = static_cast<int>(threadIdx.x) / narrow_chunks,
            part = threadIdx.x % narrow_chunks;
  const bool valid = of_a < inside && 8 * part < heads.count;
  const std::int64_t at = valid ? (a.row(heads.b, first + of_a, rank) + heads.first) / 8 + part : 0;
  ptx::copy_async<16>(panel + rows * wide_chunks + narrow_swizzle(of_a, part),
                      static_cast<const uint4*>(a.data) + at, valid);
}

/// This lane's elements of ak or av in a panel: row 16 i + 8 half + group, two heads of the warp.
template <class E>
__device__ __forceinline__ float2 factor_of(const uint4* panel, const Thread& self, int i,
                                            int half) {
  const int row = 16 * i + 8 * half + self.group;
  const auto* const words = reinterpret_cast<const unsigned*>(panel + rows * wide_chunks);
  return unpacked<E>(words[narrow_swizzle(row, self.warp) * 4 + self.member]);
}

/// Stores two heads of a row, split into two planes (hi, lo) of (entry, head).
template <class E>
__device__ __forceinline__ void store_split(uint4 (&planes)[2][rows * narrow_chunks],
                                            const Thread& self, int i, int half,
                                            const SplitPair<E>& split) {
  const int word = narrow_swizzle(16 * i + 8 * half + self.group, self.warp) * 4 + self.member;
  reinterpret_cast<unsigned*>(planes[0])[word] = split.hi;
  reinterpret_cast<unsigned*>(planes[1])[word] = split.lo;
}

/// The products of a panel's rows with rows (head, column) of the warp's 8 heads, which are the sum
/// of `planes` planes.
template <class E, int planes>
__device__ __forceinline__ void multiply_heads(float (&products)[2][4], const uint4* panel,
                                               const uint4* heads, const Thread& self,
                                               int columns) {
  const int plane = planes == 1 ? 0 : self.lane / 16 * most_heads * wide_chunks;
  for (int k = 0; k < columns; k += 16) {
    unsigned right[2 * planes], left[2][4];
    ptx::ldmatrix(
        right,
        heads + plane + wide_swizzle(8 * self.warp + self.lane % 8, k / 8 + self.lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::ldmatrix(left[i], panel + wide_swizzle(16 * i + self.lane % 16, k / 8 + self.lane / 16));
#pragma unroll
      for (int p = 0; p < planes; ++p) {
        mma<E>(products[i], left[i], {right[2 * p], right[2 * p + 1]});
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
  uint4* split;        // hi, lo: two planes of (head, column)
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
    const int chunk = self.thread % wide_chunks;
    for (int k = self.thread / wide_chunks; k < count && 8 * chunk < d;
         k += threads / wide_chunks) {
      split[k * wide_chunks + chunk] =
          static_cast<const uint4*>(bq.data)[bq.row(heads.b, start + k) / 8 + chunk];
    }
  }
  __device__ __forceinline__ float aq_at(int head, int k) const {
    return aq_scratch[aq_index(head, k)];
  }
  __device__ __forceinline__ float2 bq_at(int k, int column) const {
    return unpacked<E>(reinterpret_cast<const unsigned*>(split)[(k * most_columns + column) / 2]);
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
    auto* const words = reinterpret_cast<unsigned*>(split);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float lower = 1.0f / power_near(fmaxf(largest[first + i], query_scale[first + i]));
      const SplitPair<E> both(q[i].x * lower, q[i].y * lower);
      if (column < (d + 15) / 16 * 16) {
        const int word = wide_swizzle(first + i, column / 8) * 4 + column % 8 / 2;
        words[word] = both.hi;
        words[word + most_heads * wide_chunks * 4] = both.lo;
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
