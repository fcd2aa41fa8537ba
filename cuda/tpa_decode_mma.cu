// Attention of one token over factored keys and values on tensor cores: bf16 and f16 with sizes
// that are multiples of 8, d up to 128, rows on 16-byte borders. A block of four warps has a batch
// entry, a block of its entries, up to 32 heads and up to 128 columns of values; with more of
// either there are more blocks, which read bk, bv, ak, av again. Entries come in tiles of 32. For
// each rank a panel, 32 rows of bk and ak or of bv and av, is copied to one of three places in
// shared memory; two panels, 20 KiB, are on the way while one is worked on.
//
// Scores: a warp has 8 heads and all rows of the tile, so that the largest score and the sum of
// exponentials need no other warp. Outputs: a warp has 32 columns and all heads, in registers.
// What is no input, queries and exponentials times av, goes in as two numbers of 16 bits. Rows of
// shared memory have no padding; pieces of 16 bytes change places within a row so that no bank is
// met twice. Bound by memory: every factor is read once, in 50 KiB of shared memory, which lets
// three blocks share a multiprocessor.
//
// sass attend_mma<__nv_bfloat16>: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 168
//
// sass attend_mma<__half>: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 168
#include <cmath>

#include "pairs.cuh"
#include "runtime/run.h"
#include "tpa_decode.cuh"

namespace quipu {
namespace on_cuda {
namespace {

constexpr int warps = 4, threads = warps * 32;
constexpr int rows = 32, block_heads = 32, block_columns = 128, places = 3;
constexpr int panel_chunks = rows * (block_columns + block_heads) / 8;  // of 16 bytes
constexpr int query_depth = 32;                                         // of r, at a time
constexpr int result_pitch = block_columns + 8;
static_assert(rows == cuda_tpa_tile);

template <class E>
struct Forward {
  Factor aq, bq, ak, bk, av, bv;
  EntryCounts counts;
  IndexGuard guard;
  TpaBlocks blocks;
  ForwardTarget<float> to;
  int r, d, key_rank, value_rank, column_groups;
  float score_scale;
};

struct Shared {
  uint4 panels[places][panel_chunks];                 // 32 rows of b, then of a
  uint4 queries[2][block_heads * block_columns / 8];  // the halves: (head, d)
  uint4 weights[2][rows * block_heads / 8];           // the halves: (entry, head)
  float scale[block_heads];                           // of the scores, by head
  float shrink[block_heads];
};

/// Where a piece of 16 bytes lies: of rows of 256 bytes, and of 64.
__device__ __forceinline__ int wide_place(int row, int chunk) {
  return row * (block_columns / 8) + (chunk ^ (row & 7));
}
__device__ __forceinline__ int narrow_place(int row, int chunk) {
  return row * (block_heads / 8) + (chunk ^ (row >> 1 & 3));
}

template <class E>
class Attention {
 public:
  __device__ __forceinline__ Attention(const Forward<E>& forward)
      : f_(forward),
        block_(forward.blocks, forward.counts),
        shared_(*dynamic_shared<Shared>()),
        head_(static_cast<int>(blockIdx.y) / forward.column_groups * block_heads),
        column_(static_cast<int>(blockIdx.y) % forward.column_groups * block_columns),
        heads_(min(block_heads, static_cast<int>(forward.to.heads) - head_)),
        columns_(min(block_columns, static_cast<int>(forward.to.e) - column_)) {}

  __device__ __forceinline__ void run() {
    if (blockIdx.y == 0 && block_.index == 0 && thread_ == 0) f_.counts.check(f_.guard, block_.b);
    const int tiles = static_cast<int>((block_.end - block_.begin + rows - 1) / rows);
    const int per_tile = f_.key_rank + f_.value_rank, panels = tiles * per_tile;
    for (int p = 0; p < places - 1; ++p) fetch(p, p < panels, per_tile);
    if (panels > 0) make_queries();
    for (int p = 0; p < panels; ++p) {
      const int tile = p / per_tile, rank = p % per_tile;
      ptx::copy_wait<places - 2>();
      __syncthreads();
      fetch(p + places - 1, p + places - 1 < panels, per_tile);
      const uint4* const panel = shared_.panels[p % places];
      if (rank < f_.key_rank) {
        if (rank == 0) clear_scores();
        if (8 * warp_ < heads_) score(panel);
        if (rank == f_.key_rank - 1) absorb(tile);
      } else {
        weigh(panel);
        __syncthreads();
        if (rank == f_.key_rank) shrink_sums();
        if (32 * warp_ < columns_) add_values(panel);
      }
    }
    finish();
  }

 private:
  static constexpr bool is_half = std::is_same_v<E, __half>;
  // What is left of an f16 may be below the smallest one: such products have sums of their own.
  static constexpr float low_scale = is_half ? 2048.0f : 1.0f;
  static constexpr int sum_parts = is_half ? 2 : 1;

  /// Copies a panel: rows of bk or bv, 16 pieces each, and of ak or av, 4 pieces each. What lies
  /// outside is 0.
  __device__ __forceinline__ void fetch(int p, bool exists, int per_tile) {
    if (exists) {
      const int tile = p / per_tile, rank = p % per_tile;
      const bool is_key = rank < f_.key_rank;
      const std::int64_t first = block_.begin + tile * rows;
      const int inside = static_cast<int>(min(static_cast<std::int64_t>(rows), block_.end - first));
      uint4* const panel = shared_.panels[p % places];
      if (is_key) {
        fetch_rows(panel, f_.bk, f_.ak, first, rank, inside, f_.d, 0);
      } else {
        fetch_rows(panel, f_.bv, f_.av, first, rank - f_.key_rank, inside, columns_, column_);
      }
    }
    ptx::copy_commit();
  }
  __device__ __forceinline__ void fetch_rows(uint4* panel, const Factor& b, const Factor& a,
                                             std::int64_t first, int rank, int inside, int columns,
                                             int column) const {
    const int row = thread_ / 16, chunk = thread_ % 16;
    if (chunk < (columns + 15) / 16 * 2) {
      const auto* const from = static_cast<const uint4*>(b.data);
#pragma unroll
      for (int i = 0; i < rows; i += threads / 16) {
        const bool valid = row + i < inside && 8 * chunk < columns;
        const std::int64_t at =
            valid ? (b.row(block_.b, first + row + i, rank) + column) / 8 + chunk : 0;
        ptx::copy_async<16>(panel + wide_place(row + i, chunk), from + at, valid);
      }
    }
    const int narrow_row = thread_ / 4, narrow_chunk = thread_ % 4;
    const bool valid = narrow_row < inside && 8 * narrow_chunk < heads_;
    const std::int64_t at =
        valid ? (a.row(block_.b, first + narrow_row, rank) + head_) / 8 + narrow_chunk : 0;
    ptx::copy_async<16>(panel + rows * block_columns / 8 + narrow_place(narrow_row, narrow_chunk),
                        static_cast<const uint4*>(a.data) + at, valid);
  }

  /// The queries of the heads, each by a power of two near its largest number so that every type
  /// holds it. A thread has two columns and 16 heads; aq and bq go through memory that is free yet.
  __device__ __forceinline__ void make_queries() {
    constexpr int depth = query_depth;
    const int column = thread_ % 64 * 2, first = thread_ / 64 * 16;
    const auto* const aq = reinterpret_cast<const float*>(shared_.weights);
    const auto* const bq = reinterpret_cast<const unsigned*>(shared_.queries);
    float2 q[16] = {};
    for (int start = 0; start < f_.r; start += depth) {
      const int count = min(depth, f_.r - start);
      __syncthreads();
      load_query_factors(start, count);
      __syncthreads();
      for (int k = 0; k < count && column < f_.d; ++k) {
        const float2 right = unpacked<E>(bq[k * (block_columns / 2) + column / 2]);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const float left = aq[k * block_heads + (first + i + k) % block_heads];
          q[i].x += left * right.x;
          q[i].y += left * right.y;
        }
      }
    }
    put_queries(q, first, column);
  }
  /// aq as f32 (k, head), turned so that neither is a conflict; rows of bq as they are.
  __device__ __forceinline__ void load_query_factors(int start, int count) {
    constexpr int depth = query_depth;
    auto* const aq = reinterpret_cast<float*>(shared_.weights);
    for (int i = thread_; i < block_heads * depth; i += threads) {
      const int head = i / depth, k = i % depth;
      const bool inside = head < heads_ && k < count;
      aq[k * block_heads + (head + k) % block_heads] =
          inside ? f_.aq.template at<float>(f_.aq.row(block_.b, head_ + head), start + k) : 0.0f;
    }
    const int chunk = thread_ % 16;
    for (int k = thread_ / 16; k < count && 8 * chunk < f_.d; k += threads / 16) {
      shared_.queries[0][k * (block_columns / 8) + chunk] =
          static_cast<const uint4*>(f_.bq.data)[f_.bq.row(block_.b, start + k) / 8 + chunk];
    }
  }
  __device__ __forceinline__ void put_queries(const float2 (&q)[16], int first, int column) {
    // Each of the two warps that share heads finds the largest numbers of its columns.
    float* const largest = shared_.shrink;
    float* const others = shared_.scale;
    float* const mine = warp_ % 2 == 0 ? largest : others;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float most = fold_warp(fmaxf(std::abs(q[i].x), std::abs(q[i].y)),
                                   [](float x, float y) { return fmaxf(x, y); });
      if (lane_ == i) mine[first + i] = most;
    }
    __syncthreads();  // bq was read, too
    auto* const words = reinterpret_cast<unsigned*>(shared_.queries);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int head = first + i;
      const float scale = lowering(fmaxf(largest[head], others[head]));
      const Halves<E> halves(q[i].x * scale, q[i].y * scale);
      if (column < (f_.d + 15) / 16 * 16) {
        const int word = wide_place(head, column / 8) * 4 + column % 8 / 2;
        words[word] = halves.high;
        words[word + block_heads * block_columns / 2] = halves.low;
      }
    }
    __syncthreads();
    if (thread_ < block_heads) {
      const float scale = lowering(fmaxf(largest[thread_], others[thread_]));
      shared_.scale[thread_] = f_.score_scale / scale;
    }
  }
  /// The power of two that brings a number into [1, 2); 1 for 0 and what is not finite.
  __device__ __forceinline__ static float lowering(float x) {
    const unsigned exponent = __float_as_uint(x) >> 23;
    return exponent == 0 || exponent > 252 ? 1.0f : __uint_as_float((254 - exponent) << 23);
  }

  __device__ __forceinline__ void clear_scores() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v) scores_[i][v] = 0.0f;
    }
  }

  /// This lane's elements of ak or av: rows group and group + 8 of both halves of the tile, two
  /// heads each.
  __device__ __forceinline__ float2 factor_of(const uint4* panel, int i, int half) const {
    const int row = 16 * i + group_ + 8 * half;
    const auto* const words = reinterpret_cast<const unsigned*>(panel + rows * block_columns / 8);
    return unpacked<E>(words[narrow_place(row, warp_) * 4 + member_]);
  }

  /// Adds scale ak (bk q) for the tile and the warp's 8 heads.
  __device__ __forceinline__ void score(const uint4* panel) {
    float products[2][4] = {};
    for (int k = 0; k < f_.d; k += 16) {
      const int chunk = k / 8;
      unsigned query[4], key[2][4];  // both halves; both halves of the tile
      ptx::ldmatrix(query, shared_.queries[lane_ / 16] +
                               wide_place(8 * warp_ + lane_ % 8, chunk + lane_ / 8 % 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ptx::ldmatrix(key[i], panel + wide_place(16 * i + lane_ % 16, chunk + lane_ / 16));
        mma<E>(products[i], key[i], {query[0], query[1]});
        mma<E>(products[i], key[i], {query[2], query[3]});
      }
    }
    const auto scale = reinterpret_cast<const float2*>(shared_.scale)[4 * warp_ + member_];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 ak = factor_of(panel, i, half);
        scores_[i][2 * half] += scale.x * (ak.x * products[i][2 * half]);
        scores_[i][2 * half + 1] += scale.y * (ak.y * products[i][2 * half + 1]);
      }
    }
  }

  /// Turns scores into exponentials less the largest so far.
  __device__ __forceinline__ void absorb(int tile) {
    const std::int64_t left = block_.end - block_.begin - std::int64_t{tile} * rows;
    float shrink[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      float largest = largest_[v];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores_[i / 2][2 * (i % 2) + v];
        if (8 * i + group_ >= left) score = minus_infinity<float>;
        largest = score > largest ? score : largest;
      }
      for (int lanes = 4; lanes < 32; lanes *= 2)
        largest = fmaxf(largest, from_lane(largest, lanes));
      const float shift = largest == minus_infinity<float> ? 0.0f : largest;
      shrink[v] = std::exp(largest_[v] - shift);
      largest_[v] = largest;
      sum_[v] *= shrink[v];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores_[i / 2][2 * (i % 2) + v];
        score = std::exp(score - shift);
        sum_[v] += score;
      }
    }
    if (group_ == 0) {
      reinterpret_cast<float2*>(shared_.shrink)[4 * warp_ + member_] =
          make_float2(shrink[0], shrink[1]);
    }
  }

  /// Exponentials times av, for all warps to see.
  __device__ __forceinline__ void weigh(const uint4* panel) {
    auto* const words = reinterpret_cast<unsigned*>(shared_.weights);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 av = factor_of(panel, i, half);
        const Halves<E> halves(scores_[i][2 * half] * av.x, scores_[i][2 * half + 1] * av.y,
                               low_scale);
        const int word = narrow_place(16 * i + group_ + 8 * half, warp_) * 4 + member_;
        words[word] = halves.high;
        words[word + rows * block_heads / 2] = halves.low;
      }
    }
  }

  __device__ __forceinline__ void shrink_sums() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = shared_.shrink[8 * i + group_];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int part = 0; part < sum_parts; ++part) {
          sums_[part][i / 2][n][2 * (i % 2)] *= factor;
          sums_[part][i / 2][n][2 * (i % 2) + 1] *= factor;
        }
      }
    }
  }

  /// The sums grow by weights^T bv, for the warp's 32 columns.
  __device__ __forceinline__ void add_values(const uint4* panel) {
#pragma unroll
    for (int k = 0; k < rows; k += 16) {
      unsigned weight[2][2][4];  // half, 16 heads
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::ldmatrix<4, true>(
              weight[half][i], shared_.weights[half] + narrow_place(k + lane_ % 8 + lane_ / 16 * 8,
                                                                    2 * i + lane_ / 8 % 2));
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (32 * warp_ + 16 * n >= columns_) continue;
        unsigned value[4];
        ptx::ldmatrix<4, true>(value,
                               panel + wide_place(k + lane_ % 16, 4 * warp_ + 2 * n + lane_ / 16));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            auto& sums = sums_[half % sum_parts][i];
            mma<E>(sums[2 * n], weight[half][i], {value[0], value[1]});
            mma<E>(sums[2 * n + 1], weight[half][i], {value[2], value[3]});
          }
        }
      }
    }
  }

  /// Divides the sums by those of the exponentials; rows of them go out through shared memory.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      for (int lanes = 4; lanes < 32; lanes *= 2) sum_[v] += from_lane(sum_[v], lanes);
    }
    ptx::copy_wait<0>();
    __syncthreads();
    if (group_ == 0) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int head = 8 * warp_ + 2 * member_ + v;
        shared_.shrink[head] = f_.to.factor(sum_[v]);
        if (column_ == 0 && head < heads_)
          f_.to.put_sum(block_.b, head_ + head, largest_[v], sum_[v]);
      }
    }
    __syncthreads();
    auto* const result = reinterpret_cast<float*>(shared_.panels);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * i + group_;
      const float factor = shared_.shrink[head];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int v = 2 * (i % 2);
        float2 sum = make_float2(sums_[0][i / 2][n][v], sums_[0][i / 2][n][v + 1]);
        if constexpr (is_half) {
          sum.x += sums_[1][i / 2][n][v] / low_scale;
          sum.y += sums_[1][i / 2][n][v + 1] / low_scale;
        }
        const int place = head * result_pitch + 32 * warp_ + 8 * n + 2 * member_;
        reinterpret_cast<float2*>(result)[place / 2] = make_float2(sum.x * factor, sum.y * factor);
      }
    }
    __syncthreads();
    put_rows(result);
  }
  __device__ __forceinline__ void put_rows(const float* result) const {
    if (f_.to.outputs == nullptr) {
      for (int i = thread_; i < heads_ * columns_; i += threads) {
        const int head = i / columns_, column = i % columns_;
        f_.to.put_output(block_.b, head_ + head, column_ + column,
                         result[head * result_pitch + column]);
      }
      return;
    }
    const int chunks = columns_ / 4;
    for (int i = thread_; i < heads_ * chunks; i += threads) {
      const int head = i / chunks, chunk = i % chunks;
      const std::int64_t to = (blockIdx.x * f_.to.heads + head_ + head) * f_.to.e + column_;
      reinterpret_cast<float4*>(f_.to.outputs)[to / 4 + chunk] =
          reinterpret_cast<const float4*>(result)[head * (result_pitch / 4) + chunk];
    }
  }

  const Forward<E>& f_;
  EntryBlock block_;
  Shared& shared_;
  int head_, column_, heads_, columns_;
  int thread_ = static_cast<int>(threadIdx.x), warp_ = thread_ / 32, lane_ = thread_ % 32;
  int group_ = lane_ / 4, member_ = lane_ % 4;
  float scores_[2][4];  // rows group and group + 8 of 16, two heads
  float largest_[2] = {minus_infinity<float>, minus_infinity<float>};
  float sum_[2] = {};                    // this lane's part
  float sums_[sum_parts][2][4][4] = {};  // 16 heads, 8 columns
};

template <class E>
__global__ void __launch_bounds__(threads, 3) attend_mma(Forward<E> f) {
  Attention<E>(f).run();
}

// ---- on the host ----

bool suits(const TpaInputs& in) {
  if (!is_reduced(in.aq.dtype)) return false;
  const std::int64_t d = in.bq.size(2), e = in.bv.size(3);
  if (d == 0 || e == 0 || in.aq.size(2) == 0 || in.ak.size(2) == 0 || in.av.size(2) == 0)
    return false;
  if (d > block_columns || in.ak.size(1) == 0) return false;
  for (const View* v : {&in.bq, &in.ak, &in.bk, &in.av, &in.bv}) {
    if (!has_packed_rows(*v, v->dim() - 1)) return false;
  }
  return true;
}

template <class E>
void run_attention(const TpaInputs& in, const ForwardTarget<float>& to, const TpaBlocks& blocks,
                   IndexGuard guard) {
  const auto small = [](std::int64_t n) { return static_cast<int>(n); };
  const unsigned column_groups = blocks_for(to.e, block_columns);
  const Forward<E> f{Factor(in.aq),
                     Factor(in.bq),
                     Factor(in.ak),
                     Factor(in.bk),
                     Factor(in.av),
                     Factor(in.bv),
                     EntryCounts(in),
                     guard,
                     blocks,
                     to,
                     small(in.aq.size(2)),
                     small(in.bq.size(2)),
                     small(in.ak.size(2)),
                     small(in.av.size(2)),
                     static_cast<int>(column_groups),
                     static_cast<float>(in.score_scale)};
  const dim3 grid(static_cast<unsigned>(in.aq.size(0) * blocks.count),
                  blocks_for(to.heads, block_heads) * column_groups);
  on_cuda::run(Queue(in.aq), attend_mma<E>, grid, threads, sizeof(Shared), f);
}

}  // namespace

bool tpa_forward_on_tensor_cores(const TpaInputs& in, const View& o, const View& lse,
                                 const View& partial, const TpaBlocks& blocks, IndexGuard guard) {
  if (!suits(in)) return false;
  const ForwardTarget<float> to(o, lse, partial, blocks, in.value_scale);
  in.aq.dtype == bf16 ? run_attention<__nv_bfloat16>(in, to, blocks, guard)
                      : run_attention<__half>(in, to, blocks, guard);
  return true;
}

}  // namespace on_cuda
}  // namespace quipu
