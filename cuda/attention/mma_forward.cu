// Softmax attention, forward, by tensor cores, after FlashAttention-2 (Dao 2023, arXiv:2307.08691).
// A block of four warps has 128 queries in shared memory, 32 a warp, so that each fragment of keys
// and values feeds four mma; keys and values pass by in tiles of 64 (32 where rows are wider than
// 64), double buffered. Scores, weights and accumulators never leave registers: the accumulators of
// q k^T are the A fragments of P v. Weights are rounded to 16 bits once, and the sum that divides
// the output is that of the rounded ones. Only tiles that the diagonal or the last key cuts are
// masked, and accumulators are rescaled only when a maximum has grown. q and o move once, k and v
// once for every 128 queries, mostly from L2. Bound by the two products: on sm_80 a tile of a warp
// is 128 HMMA, 1024 cycles of its tensor core, beside about 460 other instructions at d = 128 and
// 700 at d = 64, masks and rescaling apart.
//
// What rounded weights cost, as rms error of 512 keys with normal numbers, in units of half an
// epsilon: 0.40, which with the rounding of the output makes 0.58 instead of 0.43. With the sum of
// the unrounded weights, as in FlashAttention-2, it is the same where values have mean 0, and half
// as much again (0.11 for 0.07) where they have not and few weights count.
//
// Where the queries of a key head are one block's and heads are few (decoding), keys are split
// among blocks (flash decoding), whose normalized outputs and log-sum-exps tpa_decode/merge.cu
// combines in order; then it is bound by reading k and v once.
//
// sass attend_fragments: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 255; dynamic 65536; blocks 2@80,90
// 1@86,89,120
#include <cmath>

#include "mma.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/running_softmax.cuh"
#include "quipu/cuda/tpa_decode/tpa_decode.cuh"

namespace quipu::detail::on_cuda {
namespace {

using namespace attention_mma;

constexpr int block_rows = static_cast<int>(attention_block_rows), warp_rows = 32;
constexpr int row_tiles = warp_rows / 16;

/// The keys of a block are a part of all; results of parts go to workspace. One part has none.
struct KeyParts {
  int count = 1, length = std::numeric_limits<int>::max();
  float* outputs = nullptr;  // (b hk, part, row, e)
  float* sums = nullptr;     // (b hk, part, row): log-sum-exps
  float* rests = nullptr;    // likewise their low parts
};

/// What a block works on, in shared memory: in registers it would not find room.
struct Bounds {
  HeadOffsets offsets;
  int first, begin, end;                                 // its first query, and its keys
  int least;                                             // keys that all of its queries attend to
  int warp_end[threads / 32], warp_least[threads / 32];  // likewise of each warp
};

/// The work of a block; members are what each thread holds.
template <class E, int width>
class ForwardBlock {
 public:
  static constexpr int keys = width == 64 ? 64 : 32;  // of a tile
  using Queries = SwizzledTile<E, width, block_rows>;
  using Keys = SwizzledTile<E, width, keys>;
  static constexpr std::size_t shared_bytes = Queries::bytes + 4 * Keys::bytes;

  __device__ __forceinline__ ForwardBlock(const Attention<float>& call, const KeyParts& parts,
                                          Bounds& bounds, int tiles)
      : a_(call),
        parts_(parts),
        at_(bounds),
        // The weight of a score that is less than the maximum by x is 2^(slope x). Positive even
        // for a scale of 0: then a masked score, -infinity, still has the weight 0.
        slope_(
            fminf(fmaxf(std::abs(a_.scale) * 1.44269504f, std::numeric_limits<float>::denorm_min()),
                  std::numeric_limits<float>::max())) {
    if (self_.thread < static_cast<int>(threads) / 32) set_bounds(bounds, tiles, self_.thread);
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
    fetch_queries();
    Loader load_keys(start_of(a_.k), a_.k.token), load_values(start_of(a_.v), a_.v.token);
    const auto fetch = [&](int from, int stage) {
      load_keys.fetch(keys_at(stage), a_.k.token, at_.end - from, a_.d);
      load_values.fetch(values_at(stage), a_.v.token, at_.end - from, a_.e);
      ptx::copy_commit();
    };
    fetch(at_.begin, 0);
    if (a_.scale < 0) negate_queries();
#pragma unroll 1
    for (int from = at_.begin, stage = 0; from < at_.end; from += keys, stage ^= 1) {
      ptx::copy_wait<0>();
      __syncthreads();  // the tile is there, and nobody reads the one before any more
      if (from + keys < at_.end) fetch(from + keys, stage ^ 1);
      if (a_.causal && from + keys > at_.least) has_nonfinite_ |= zero_nonfinite(values_at(stage));
      if (from >= at_.warp_end[self_.warp]) continue;
      float s[row_tiles][keys / 8][4] = {};
      add_product_transposed(s, queries(), self_.warp * warp_rows, keys_at(stage));
      if (from + keys > at_.warp_least[self_.warp]) mask(s, from);
      unsigned weights[row_tiles][keys / 16][4];
      softmax_step(s, weights);
      add_product(result_, weights, values_at(stage));
    }
    ptx::copy_wait<0>();
    parts_.count > 1 ? store_part() : epilogue();
    if (has_nonfinite_) put_nonfinite();
  }

 private:
  using Loader = TileLoader<Keys, static_cast<int>(threads)>;

  __device__ __forceinline__ Queries queries() const {
    return {dynamic_shared<uint4>()};
  }
  __device__ __forceinline__ Keys keys_at(int stage) const {
    return {dynamic_shared<uint4>() + Queries::size + 2 * stage * Keys::size};
  }
  __device__ __forceinline__ Keys values_at(int stage) const {
    return {dynamic_shared<uint4>() + Queries::size + (2 * stage + 1) * Keys::size};
  }
  __device__ __forceinline__ const E* start_of(const AttentionView& x) const {
    return static_cast<const E*>(x.data) + at_.offsets.key(x, at_.begin);
  }
  /// By a thread for each warp.
  __device__ __forceinline__ void set_bounds(Bounds& to, int tiles, int warp) const {
    const int blocks = tiles * parts_.count;  // of a head; one of both is 1
    const int head = static_cast<int>(blockIdx.x) / blocks,
              block = static_cast<int>(blockIdx.x) % blocks;
    // With a causal mask the last queries have most to do, and begin first.
    const int first = parts_.count > 1 ? 0 : (tiles - 1 - block) * block_rows;
    const int begin = parts_.count > 1 ? block * parts_.length : 0;
    const int end = min(a_.most_keys(first, first + block_rows),
                        parts_.count > 1 ? begin + parts_.length : a_.m);
    const int mine = first + warp * warp_rows;
    to.warp_end[warp] = mine < a_.rows ? a_.most_keys(mine, mine + warp_rows) : 0;
    to.warp_least[warp] = mine < a_.rows ? min(end, a_.least_keys(mine, mine + warp_rows)) : 0;
    if (warp > 0) return;
    to.offsets = {head / a_.key_heads, head % a_.key_heads};
    to.first = first;
    to.begin = begin;
    to.end = end;
    to.least = a_.least_keys(first, first + block_rows);
  }
  /// A row of this lane's fragments.
  __device__ __forceinline__ int row_of(int t, int half) const {
    return self_.warp * warp_rows + t * 16 + half * 8 + self_.group;
  }
  /// The number of keys that a row of the block attends to.
  __device__ __forceinline__ int limit_of(int row) const {
    return at_.first + row < a_.rows ? a_.limit(at_.first + row) : 0;
  }

  __device__ __forceinline__ void fetch_queries() const {
    fetch_rows<static_cast<int>(threads)>(queries(), a_.d, [&](int row) -> const E* {
      if (at_.first + row >= a_.rows) return nullptr;
      return static_cast<const E*>(a_.q.data) + at_.offsets.query(a_, a_.q, at_.first + row);
    });
  }
  /// For a negative scale: then the largest product has the largest score again. Each thread has
  /// the chunks that it copied.
  __device__ __forceinline__ void negate_queries() const {
    constexpr unsigned signs = 0x80008000u;
    ptx::copy_wait<0>();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Queries::size; i += threads) {
      uint4& x = queries().chunk(i / Queries::chunks, i % Queries::chunks);
      x = make_uint4(x.x ^ signs, x.y ^ signs, x.z ^ signs, x.w ^ signs);
    }
  }

  __device__ __forceinline__ void mask(float (&s)[row_tiles][keys / 8][4], int from) const {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int left = min(limit_of(row_of(t, half)), at_.end) - from - 2 * self_.member;
#pragma unroll
        for (int j = 0; j < keys / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (j * 8 + i >= left) s[t][j][2 * half + i] = minus_infinity<float>;
          }
        }
      }
    }
  }

  /// Scores become weights, rounded, as A fragments; accumulators are rescaled to new maxima.
  __device__ __forceinline__ void softmax_step(const float (&s)[row_tiles][keys / 8][4],
                                               unsigned (&weights)[row_tiles][keys / 16][4]) {
    const auto weight_of = [&](float x) { return ptx::exp2_flushed(x * slope_); };
    float rescale[row_tiles][2];
    bool raised = false;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        RunningSoftmax<float>& row = softmax_[t][half];
        float most = row.largest;
#pragma unroll
        for (int j = 0; j < keys / 8; ++j) {
          most = fmaxf(most, fmaxf(s[t][j][2 * half], s[t][j][2 * half + 1]));
        }
        most = fold_fragment_row(most, [](float x, float y) { return fmaxf(x, y); });
        raised |= most > row.largest;
        rescale[t][half] = row.raise(most, weight_of);
        rounded_sum_[t][half] *= rescale[t][half];
#pragma unroll
        for (int j = 0; j < keys / 8; ++j) {
          const float first = weight_of(s[t][j][2 * half] - row.largest),
                      second = weight_of(s[t][j][2 * half + 1] - row.largest);
          row.sum += first + second;
          const unsigned pair = packed<E>(first, second);
          const float2 rounded = unpacked<E>(pair);
          rounded_sum_[t][half] += rounded.x + rounded.y;
          weights[t][j / 2][j % 2 * 2 + half] = pair;
        }
      }
    }
    if (!__any_sync(all_lanes, raised)) return;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int j = 0; j < width / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) result_[t][j][i] *= rescale[t][i / 2];
      }
    }
  }

  /// Stores o and the log-sum-exps. A warp's rows take the place of its queries, so that they are
  /// stored in whole vectors.
  __device__ __forceinline__ void epilogue() const {
    __syncwarp();  // all lanes have read their queries
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(t, half), limit = limit_of(row);
        const LogSum<float> log_sum = log_sum_of_row(softmax_[t][half], limit > 0);
        if (a_.lse != nullptr && at_.first + row < a_.rows && self_.member == 0) {
          a_.put_sum(at_.offsets.statistic(a_, at_.first + row), log_sum);
        }
        const float inverse = inverse_sum(t, half, limit > 0);
#pragma unroll
        for (int j = 0; j < width / 8; ++j) {
          queries().pair(row, j * 8 + 2 * self_.member) =
              packed<E>(result_[t][j][2 * half] * inverse, result_[t][j][2 * half + 1] * inverse);
        }
      }
    }
    __syncwarp();
#pragma unroll 2
    for (int i = self_.lane; i < warp_rows * Queries::chunks; i += 32) {
      const int row = self_.warp * warp_rows + i / Queries::chunks, chunk = i % Queries::chunks;
      if (at_.first + row >= a_.rows || chunk * 8 >= a_.e) continue;
      const std::int64_t to = at_.offsets.query(a_, a_.out, at_.first + row) / 8 + chunk;
      static_cast<uint4*>(a_.out.data)[to] = queries().chunk(row, chunk);
    }
  }
  /// Stores what a part of the keys gives.
  __device__ __forceinline__ void store_part() const {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(t, half), limit = min(limit_of(row), at_.end);
        const LogSum<float> log_sum = log_sum_of_row(softmax_[t][half], limit > at_.begin);
        // A part whose scores are all -infinity has no weight beside others.
        const float inverse = inverse_sum(t, half, log_sum.lse != minus_infinity<float>);
        if (row >= a_.rows) continue;
        const std::int64_t at = std::int64_t{blockIdx.x} * a_.rows + row;
        if (self_.member == 0) {
          parts_.sums[at] = log_sum.lse;
          parts_.rests[at] = log_sum.rest;
        }
#pragma unroll
        for (int j = 0; j < width / 8; ++j) {
          const int column = j * 8 + 2 * self_.member;
          if (column >= a_.e) break;
          reinterpret_cast<float2*>(parts_.outputs)[(at * a_.e + column) / 2] =
              make_float2(result_[t][j][2 * half] * inverse, result_[t][j][2 * half + 1] * inverse);
        }
      }
    }
  }
  __device__ __forceinline__ LogSum<float> log_sum_of_row(const RunningSoftmax<float>& softmax,
                                                          bool attends) const {
    const float sum = fold_fragment_row(softmax.sum, [](float x, float y) { return x + y; });
    // Backward takes scores unrounded: the maximum has a low part, too.
    const float scale = std::abs(a_.scale), most = softmax.largest * scale,
                rest = std::fma(softmax.largest, scale, -most);
    return log_sum_of(attends ? most : minus_infinity<float>,
                      std::log(sum) + (is_nonfinite(rest) ? 0.0f : rest));
  }
  /// 1 / the sum of a row's rounded weights; 0 without any.
  __device__ __forceinline__ float inverse_sum(int t, int half, bool attends) const {
    const float sum =
        fold_fragment_row(rounded_sum_[t][half], [](float x, float y) { return x + y; });
    return attends ? 1.0f / sum : 0.0f;
  }
  /// Puts nonfinite values, which zero_nonfinite() zeroed, over the outputs that they belong to.
  __device__ __forceinline__ void put_nonfinite() const {
    __syncwarp();  // the outputs are there
#pragma unroll 1
    for (int i = self_.lane; i < warp_rows * a_.e; i += 32) {
      const int row = self_.warp * warp_rows + i / a_.e, column = i % a_.e;
      const float o =
          nonfinite_sum<false, E>(a_, at_.offsets, a_.v, at_.begin, min(limit_of(row), at_.end),
                                  column, [](int) { return true; });
      if (!is_nonfinite(o)) continue;
      if (parts_.count > 1) {
        parts_.outputs[(std::int64_t{blockIdx.x} * a_.rows + row) * a_.e + column] = o;
      } else {
        static_cast<E*>(a_.out.data)[at_.offsets.query(a_, a_.out, at_.first + row) + column] =
            converted<E>(o);
      }
    }
  }

  const Attention<float>& a_;
  const KeyParts& parts_;
  const Bounds& at_;
  Thread self_;
  float slope_;
  bool has_nonfinite_ = false;
  RunningSoftmax<float> softmax_[row_tiles][2];
  float rounded_sum_[row_tiles][2] = {};
  float result_[row_tiles][width / 8][4] = {};
};

template <class E, int width>
__global__ void __launch_bounds__(threads, 2)
    attend_fragments(Attention<float> a, KeyParts parts, int tiles) {
  __shared__ Bounds bounds;
  ForwardBlock<E, width>(a, parts, bounds, tiles).run();
}

template <class E>
void run_fragments(const View& on, const Attention<float>& a, const KeyParts& parts,
                   std::int64_t heads) {
  const int tiles = (a.rows + block_rows - 1) / block_rows;
  const std::int64_t blocks = heads * tiles * parts.count;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", a.rows,
        " rows is beyond what a device takes at once");
  const auto run_width = [&]<int width>(std::integral_constant<int, width>) {
    run(Queue(on), attend_fragments<E, width>, static_cast<unsigned>(blocks), threads,
        ForwardBlock<E, width>::shared_bytes, a, parts, tiles);
  };
  std::max(a.d, a.e) <= 64 ? run_width(std::integral_constant<int, 64>{})
                           : run_width(std::integral_constant<int, 128>{});
}

}  // namespace

bool attention_forward_mma(const View& on, const Attention<float>& a, const View& o,
                           const LogSums& sums, const View& partial, const TpaBlocks& blocks) {
  if (!supports_mma(a) || !a.out.packed) return false;
  const std::int64_t heads = o.size(0) * a.key_heads;
  const auto run_parts = [&](const KeyParts& parts) {
    (a.q.dtype == bf16 ? run_fragments<__nv_bfloat16> : run_fragments<__half>)(on, a, parts, heads);
  };
  if (blocks.count == 1) {
    run_parts({});
    return true;
  }
  // To the merge, the queries of a key head are the heads of a batch entry.
  const auto grouped = [&](View v, std::int64_t features) {
    v.shape = {heads, a.rows, features};
    v.strides = {a.rows * features, features, 1};
    return v;
  };
  const LogSums rows =
      sums.lse.defined ? LogSums{grouped(sums.lse, 1), grouped(sums.rest, 1)} : LogSums();
  ForwardTarget<float> to(grouped(o, a.e), rows, partial, blocks, 1);
  // With more keys than queries each query attends to some, and has no output if all scores are
  // -infinity.
  to.without_weights = std::numeric_limits<float>::quiet_NaN();
  run_parts({static_cast<int>(blocks.count), static_cast<int>(blocks.length), to.outputs, to.sums,
             to.rests});
  tpa_merge(to, blocks, heads, Queue(on));
  return true;
}

}  // namespace quipu::detail::on_cuda
