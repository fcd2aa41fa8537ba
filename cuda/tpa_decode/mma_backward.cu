// Backward of tensor product attention by tensor cores: bf16 of rank 1 with sizes that are
// multiples of 8, up to 32 heads, d and e up to 128, rows aligned to 16 bytes. A block has a batch
// entry and a range of the entries of its cache, in tiles of 32, double buffered. Five products of
// one size make all gradients:
//   scores and the gradients of weights    bk q^T, bv d_o^T    a warp has 8 heads
//   gradients of bv and bk                 g d_o, y q          a warp has 32 columns
//   gradient of the queries                y^T bk              the same, in registers to the end
// with g = weights av, y = (gradient of scores) ak. The gradient of the queries becomes the block's
// split-K partial sums of those of aq and bq. Bound by memory: every factor is read once and every
// gradient written (or read, added to and written) once, 16 or 8 bytes a thread, whole sectors a
// row. 80 KiB of shared memory let two blocks share a multiprocessor.
//
// sass differentiate_mma: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.M88.2 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128 STG.E.64; forbid STL LDL LD.E$ ST.E$; registers 168
//
// sass differentiate_mma: blocks 2@80,90 1@86,89,120; dynamic 82560
#include "mma_backward.cuh"
#include "quipu/core/dispatch/overlap.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace tpa_mma {
namespace {

class BackwardBlock {
 public:
  __device__ __forceinline__ BackwardBlock(const TpaBackward<float>& backward)
      : g_(backward),
        block_(backward),
        shared_(*dynamic_shared<BackwardShared>()),
        heads_{block_.b, 0, backward.heads} {}

  __device__ __forceinline__ void run() {
    const int tiles = static_cast<int>((block_.end - block_.begin + rows - 1) / rows);
    if (tiles > 0) {
      fetch_upstream();
      fetch(0, tiles);
      load_sums();
      queries().make(self_);
      ptx::copy_wait<0>();
      __syncthreads();
      find_means();
    }
    for (int tile = 0; tile < tiles; ++tile) {
      fetch(tile + 1, tiles);
      ptx::copy_wait<1>();
      __syncthreads();
      process_tile(tile);
      __syncthreads();
    }
    ptx::copy_wait<0>();
    clear(g_.d_ak, g_.heads);
    clear(g_.d_bk, g_.d);
    clear(g_.d_av, g_.heads);
    clear(g_.d_bv, g_.e);
    if (g_.parts != nullptr) store_query_partials(tiles > 0);
  }

 private:
  __device__ __forceinline__ Queries<E> queries() const {
    return {g_.aq,
            g_.bq,
            heads_,
            g_.r,
            g_.d,
            {shared_.queries},
            reinterpret_cast<float*>(shared_.weights),
            shared_.query_scale,
            shared_.largest};
  }

  __device__ __forceinline__ void fetch_upstream() const {
    const std::int64_t stride = g_.d_o.step[1];
    TileLoader<Wide<E>, threads>(static_cast<const E*>(g_.d_o.data) + g_.d_o.row(block_.b, 0),
                                 stride)
        .fetch({shared_.d_o}, stride, g_.heads, g_.e);
  }
  __device__ __forceinline__ void fetch(int tile, int tiles) const {
    if (tile < tiles) {
      const std::int64_t first = block_.begin + std::int64_t{tile} * rows;
      panel(tile, 0).fetch(g_.bk, g_.ak, heads_, first, 0, inside(tile), 0, g_.d);
      panel(tile, 1).fetch(g_.bv, g_.av, heads_, first, 0, inside(tile), 0, g_.e);
    }
    ptx::copy_commit();
  }
  __device__ __forceinline__ Panel<E> panel(int tile, int input) const {
    return Panel<E>(shared_.panels[tile % 2][input]);
  }
  __device__ __forceinline__ int inside(int tile) const {
    const std::int64_t left = block_.end - block_.begin - std::int64_t{tile} * rows;
    return left < rows ? static_cast<int>(left) : rows;
  }

  __device__ __forceinline__ void load_sums() const {
    if (self_.thread >= most_heads) return;
    const bool exists = self_.thread < g_.heads;
    const std::int64_t at = block_.b * g_.lse_step[0] + self_.thread * g_.lse_step[1];
    shared_.lse[self_.thread] = exists ? g_.lse[at] : 0.0f;
    shared_.rest[self_.thread] = exists ? g_.rest[at] : 0.0f;
  }
  /// The row sums of weights times their gradients, which are the row sums of o * d_o.
  __device__ __forceinline__ void find_means() const {
    for (int head = self_.warp; head < most_heads; head += warps) {
      const std::int64_t start = g_.o.row(block_.b, head);
      float sum = 0.0f;
      for (int column = self_.lane; column < g_.e && head < g_.heads; column += 32) {
        const float2 pair = unpacked<E>(Wide<E>{shared_.d_o}.pair(head, column));
        sum += g_.o.at<float>(start, column) * (column % 2 == 0 ? pair.x : pair.y);
      }
      sum = fold_warp(sum, [](float x, float y) { return x + y; });
      if (self_.lane == 0) shared_.mean[head] = sum;
    }
  }

  __device__ __forceinline__ void process_tile(int tile) {
    const Panel<E> keys = panel(tile, 0), values = panel(tile, 1);
    const Split<Wide<E>> queries{shared_.queries};
    const Split<Narrow<E>> weights{shared_.weights}, d_scores{shared_.d_scores};
    const std::int64_t first = block_.begin + std::int64_t{tile} * rows;
    const int count = inside(tile);
    score_gradients(keys, values, count);
    __syncthreads();
    store_head_gradients(g_.d_av, 0, first, count);
    store_head_gradients(g_.d_ak, 1, first, count);
    if (g_.d_bv.wanted()) {
      Sums sums = {};
      for (int part = 0; part < 2 * rows; part += rows) {
        add_product<false>(sums, weights, part, Wide<E>{shared_.d_o}, 0, self_, g_.e);
      }
      store_row_gradients(g_.d_bv, sums, 1.0f, first, count, g_.e);
    }
    if (g_.d_bk.wanted()) {
      Sums sums = {};
      add_product<false>(sums, d_scores, 0, queries, 0, self_, g_.d);
      add_product<false>(sums, d_scores, 0, queries, rows, self_, g_.d);
      add_product<false>(sums, d_scores, rows, queries, 0, self_, g_.d);
      store_row_gradients(g_.d_bk, sums, g_.score_scale, first, count, g_.d);
    }
    if (g_.parts == nullptr) return;
    for (int part = 0; part < 2 * rows; part += rows) {
      add_product<true>(d_queries_, d_scores, part, keys.b, 0, self_, g_.d);
    }
  }

  /// g and y, and the gradients of av and ak, for the warp's 8 heads.
  __device__ __forceinline__ void score_gradients(const Panel<E>& keys, const Panel<E>& values,
                                                  int count) const {
    float products[2][4] = {}, factors[2][4] = {};
    multiply_heads<E>(products, keys.b, Split<Wide<E>>{shared_.queries}, self_, g_.d);
    multiply_heads<E>(factors, values.b, Wide<E>{shared_.d_o}, self_, g_.e);
    const int pair = 4 * self_.warp + self_.member;
    const auto query_scale = reinterpret_cast<const float2*>(shared_.query_scale)[pair];
    const auto lse = reinterpret_cast<const float2*>(shared_.lse)[pair];
    const auto rest = reinterpret_cast<const float2*>(shared_.rest)[pair];
    const auto mean = reinterpret_cast<const float2*>(shared_.mean)[pair];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * i + 8 * half + self_.group;
        const float2 ak = keys.factor(self_, i, half);
        const float2 av = values.factor(self_, i, half);
        const ScoreGradient x(*this, row < count, ak.x, av.x, products[i][2 * half] * query_scale.x,
                              factors[i][2 * half], lse.x, rest.x, mean.x);
        const ScoreGradient y(*this, row < count, ak.y, av.y,
                              products[i][2 * half + 1] * query_scale.y, factors[i][2 * half + 1],
                              lse.y, rest.y, mean.y);
        store_split<E>({shared_.weights}, self_, i, half, SplitPair<E>(x.weighted, y.weighted));
        store_split<E>(
            {shared_.d_scores}, self_, i, half,
            SplitPair<E>(x.d_score * ak.x * query_scale.x, y.d_score * ak.y * query_scale.y));
        const int word =
            result_swizzle(row, 2 * self_.warp + self_.member / 2) * 2 + self_.member % 2;
        reinterpret_cast<float2*>(shared_.results[0])[word] = make_float2(x.d_av, y.d_av);
        reinterpret_cast<float2*>(shared_.results[1])[word] = make_float2(x.d_ak, y.d_ak);
      }
    }
  }
  /// The weight and the gradients of one entry and head.
  struct ScoreGradient {
    __device__ __forceinline__ ScoreGradient(const BackwardBlock& all, bool attends, float ak,
                                             float av, float product, float factor, float lse,
                                             float rest, float mean) {
      const float scale = all.g_.value_scale;
      // Rounded as in forward, not fused into the difference.
      const float score = __fmul_rn(all.g_.score_scale, ak * product);
      const float weight = attends ? std::exp((score - lse) - rest) : 0.0f;
      d_av = scale * (weight * factor);
      weighted = scale * (weight * av);
      d_score = weight * (scale * (av * factor) - mean);
      d_ak = all.g_.score_scale * (d_score * product);
    }
    float d_av, weighted, d_score, d_ak;
  };

  /// Stores rows of the gradient of av or ak, 8 heads a thread.
  __device__ __forceinline__ void store_head_gradients(const FactorGrad& to, int which,
                                                       std::int64_t first, int count) const {
    const int row = self_.thread / Narrow<E>::chunks, chunk = self_.thread % Narrow<E>::chunks;
    if (!to.wanted() || row >= count || 8 * chunk >= g_.heads) return;
    float values[8];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 four = shared_.results[which][result_swizzle(row, 2 * chunk + j)];
      values[4 * j] = four.x;
      values[4 * j + 1] = four.y;
      values[4 * j + 2] = four.z;
      values[4 * j + 3] = four.w;
    }
    Packed<float, E>::put(to.data, DType::bf16, to.row(block_.b, first + row) + 8 * chunk, values,
                          to.add);
  }

  /// Stores rows of the gradient of bv or bk. Lanes exchange pairs so that each has four
  /// neighbouring columns, and four lanes a sector.
  __device__ __forceinline__ void store_row_gradients(const FactorGrad& to, const Sums& sums,
                                                      float scale, std::int64_t first, int count,
                                                      int columns) const {
    const bool odd = self_.member % 2 != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * i + 8 * half + self_.group;
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const int v = 2 * half;
          const float2 even_pair = make_float2(scale * sums[i][n][v], scale * sums[i][n][v + 1]);
          const float2 odd_pair =
              make_float2(scale * sums[i][n + 1][v], scale * sums[i][n + 1][v + 1]);
          const float2 own = odd ? odd_pair : even_pair, sent = odd ? even_pair : odd_pair;
          const float2 other = make_float2(from_lane(sent.x, 1), from_lane(sent.y, 1));
          const int column = 32 * self_.warp + 8 * (n + odd) + 4 * (self_.member / 2);
          if (row >= count || column >= columns) continue;
          const float2 low = odd ? other : own, high = odd ? own : other;
          add_four(to, to.row(block_.b, first + row) + column, low, high);
        }
      }
    }
  }
  __device__ __forceinline__ void add_four(const FactorGrad& to, std::int64_t at, float2 low,
                                           float2 high) const {
    if (to.add) {
      const uint2 old = static_cast<const uint2*>(to.data)[at / 4];
      const float2 first = unpacked<E>(old.x), second = unpacked<E>(old.y);
      low = make_float2(first.x + low.x, first.y + low.y);
      high = make_float2(second.x + high.x, second.y + high.y);
    }
    static_cast<uint2*>(to.data)[at / 4] =
        make_uint2(packed<E>(low.x, low.y), packed<E>(high.x, high.y));
  }

  /// The block's partial sums of the gradients of aq and bq, from that of the queries.
  __device__ __forceinline__ void store_query_partials(bool attends) {
    float* const d_q = reinterpret_cast<float*>(shared_.panels);  // (head, query_pitch)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * i + self_.group;
      const float scale = attends ? g_.score_scale / shared_.query_scale[head] : 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int word = head * query_pitch + 32 * self_.warp + 8 * n + 2 * self_.member;
        const float* const sum = d_queries_[i / 2][n] + 2 * (i % 2);
        reinterpret_cast<float2*>(d_q)[word / 2] = make_float2(scale * sum[0], scale * sum[1]);
      }
    }
    float* const part = g_.parts + blockIdx.x * (std::int64_t{g_.r} * (g_.heads + g_.d));
    const Queries<E> q = queries();
    for (int start = 0; start < g_.r; start += query_depth) {
      const int count = min(query_depth, g_.r - start);
      __syncthreads();
      q.load_factors(self_, start, count);
      __syncthreads();
      for (int k = self_.warp; k < count && self_.lane < g_.heads; k += warps) {
        float sum = 0.0f;
        for (int column = 0; column < g_.d; column += 4) {
          const float4 left =
              reinterpret_cast<const float4*>(d_q)[(self_.lane * query_pitch + column) / 4];
          const float2 low = q.bq_at(k, column), high = q.bq_at(k, column + 2);
          sum += left.x * low.x + left.y * low.y + left.z * high.x + left.w * high.y;
        }
        part[std::int64_t{self_.lane} * g_.r + start + k] = sum;
      }
      for (int k = 0; k < count && self_.thread < g_.d; ++k) {
        float sum = 0.0f;
        for (int head = 0; head < g_.heads; ++head) {
          sum += q.aq_at(head, k) * d_q[head * query_pitch + self_.thread];
        }
        part[std::int64_t{g_.heads} * g_.r + std::int64_t{start + k} * g_.d + self_.thread] = sum;
      }
    }
  }

  /// Entries behind the length of the cache have gradient 0.
  __device__ __forceinline__ void clear(const FactorGrad& to, int columns) const {
    if (!to.wanted() || to.add) return;
    const int chunks = columns / 8;
    for (std::int64_t m = block_.end + self_.thread / chunks; m < block_.last;
         m += threads / chunks) {
      if (self_.thread >= threads / chunks * chunks) return;
      const std::int64_t at = to.row(block_.b, m) / 8 + self_.thread % chunks;
      static_cast<uint4*>(to.data)[at] = make_uint4(0, 0, 0, 0);
    }
  }

  const TpaBackward<float>& g_;
  EntryBlock block_;
  BackwardShared& shared_;
  Heads heads_;
  Thread self_;
  Sums d_queries_ = {};  // 16 heads, 8 columns each
};

// Shared memory is for two blocks; 3 keeps registers down on sm_120.
__global__ void __launch_bounds__(threads, 3) differentiate_mma(TpaBackward<float> backward) {
  BackwardBlock(backward).run();
}

// ---- on the host ----

bool supports_backward_mma(const TpaInputs& in, const View& d_o, const TpaInputGrads& d) {
  if (!supports_mma(in) || in.aq.dtype != bf16 || !d.of_scores() || !has_packed_rows(d_o, 2))
    return false;
  if (in.ak.size(2) != 1 || in.av.size(2) != 1) return false;
  if (in.aq.size(1) > most_heads || in.bv.size(3) > most_columns) return false;
  const Grad* const grads[] = {&d.ak, &d.bk, &d.av, &d.bv};
  for (const Grad* g : grads) {
    if (!g->wanted()) continue;
    if (g->view.dtype != bf16 || !has_packed_rows(g->view, 3)) return false;
    for (const Grad* other : grads) {
      if (other < g && other->wanted() && may_overlap(g->view, other->view)) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace tpa_mma

bool try_tpa_backward_mma(const TpaInputs& in, const View& o, const LogSums& sums, const View& d_o,
                          const TpaInputGrads& d, const View& partial, const TpaBlocks& blocks) {
  using namespace tpa_mma;
  if (!supports_backward_mma(in, d_o, d)) return false;
  run(Queue(d_o), differentiate_mma, static_cast<unsigned>(d_o.size(0) * blocks.count), threads,
      sizeof(BackwardShared), TpaBackward<float>(in, o, sums, d_o, d, partial, blocks));
  return true;
}

}  // namespace on_cuda
}  // namespace quipu::detail
