// Softmax attention, backward, by tensor cores, after FlashAttention-2 (Dao 2023,
// arXiv:2307.08691). A block of four warps owns 64 keys, 16 a warp; queries pass by in tiles of 32,
// double buffered: then two blocks share a multiprocessor of an A100, and one fits into the 99 KiB
// of other cards. For each tile
//   scores k q^T and v d_o^T from fragments of both sides;
//   weights P and gradients of scores D in registers, rounded: A fragments of what follows;
//   d_v += P^T d_o and d_k += D^T q, in registers until the end;
//   D k, the block's part of d_q, for which warps exchange D by shared memory and take a quarter of
//   the columns each.
// Five products. Parts of d_q are added in f32 in workspace, key tiles in descending order, so that
// bits never depend on the schedule: a block waits until its turn at a tile has come, and the last
// one stores d_q. Blocks take their work by tickets and wait for lower tickets only, which are all
// running, so that they cannot block each other. With a causal mask a block begins at its diagonal,
// after the one before it in the order has been there, and nobody waits. Only tiles that the
// diagonal or the last key cuts are masked. f16 has P times 2^15, and D times powers of two: for
// d_k one of each key, which shrinks as larger ones come, for d_q one of each query, from a bound.
// Where d_v is f32, P has its residual, too. Queries are read once for every 64 keys, mostly from
// L2, and so are the parts of d_q. At d = 128 a tile of a warp is 160 mma, 1280 cycles of a tensor
// core of sm_80, and 96 ldmatrix.
//
// sass differentiate_fragments: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 255; dynamic 69632;
// blocks 2@80,90 1@86,89,120
#include "backward_tiles.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {
namespace {

using namespace attention_mma;

/// Scores of a warp: its 16 keys and a tile of queries.
using Scores = float[1][span / 8][4];
using ScoreFragments = unsigned[1][span / 16][4];

/// The work of a block; members are what each thread holds.
template <class E, int width>
class BackwardBlock {
  using Tiles = BackwardTiles<E, width>;

 public:
  __device__ __forceinline__ BackwardBlock(const Attention<float>& call, const Results& results,
                                           Place& place, Statistics* statistics)
      : a_(call), results_(results), at_(place), tiles_{call, results, place, statistics} {}

  __device__ __forceinline__ void run() {
    tiles_.fetch_own(0, a_.k, a_.d);
    tiles_.fetch_own(1, a_.v, a_.e);
    ptx::copy_commit();
    int from = tiles_.next_tile(0);
    if (from < a_.rows) tiles_.fetch(from, 0);
    if constexpr (is_half) tiles_.find_largest_value();
#pragma unroll 1
    for (int stage = 0; from < a_.rows; stage ^= 1) {
      if (threadIdx.x < span) tiles_.set_statistics(from, stage);
      ptx::copy_wait<0>();
      __syncthreads();  // the tile is there, and nobody reads the one before any more
      if (threadIdx.x == 0) tiles_.pass_turn(from);
      const int next = tiles_.next_tile(from + span);
      if (next < a_.rows) tiles_.fetch(next, stage ^ 1);
      add_tile(from, stage);
      from = tiles_.next_tile(at_.done + span);  // not kept: registers are short
    }
    ptx::copy_wait<0>();
    __syncthreads();  // results overwrite everything
    if (threadIdx.x == 0) tiles_.pass_turn(-1);
    epilogue();
  }

 private:
  static constexpr bool is_half = Tiles::is_half;
  /// P of f16 is raised by a power of two: 2^-24 is its smallest number.
  static constexpr float weight_scale = is_half ? 0x1p15f : 1.0f;
  static constexpr int columns = width / 4;  // of d_q of a warp
  using QuerySums = float[span / 16][columns / 8][4];

  /// The warp's first key.
  __device__ __forceinline__ int mine() const {
    return at_.first + self_.warp * 16;
  }
  /// Adds a tile of queries to the gradients.
  __device__ __forceinline__ void add_tile(int from, int stage) {
    const int least = a_.least_keys(from, from + span);
    if (tiles_.is_partial(from)) {
      zero_nonfinite(tiles_.other(stage, 0));  // such a query has no log-sum-exp that is a number
      const bool nonfinite = zero_nonfinite(tiles_.other(stage, 1));  // and such a d_o no mean
      if (nonfinite && threadIdx.x == 0) at_.has_nonfinite = true;
    }
    // Whether the warp has any scores here; the causal mask may hide all of them.
    const bool active = mine() < min(a_.m, a_.most_keys(from, from + span));
    Scores s = {}, d_s = {};
    if (active) {
      add_product_transposed(s, tiles_.own(0), self_.warp * 16, tiles_.other(stage, 0));
      add_product_transposed(d_s, tiles_.own(1), self_.warp * 16, tiles_.other(stage, 1));
      least < mine() + 16 ? weigh<true>(s, d_s, stage) : weigh<false>(s, d_s, stage);
      if (results_.v.wanted()) add_values(s, tiles_.other(stage, 1));
    }
    if (results_.q.wanted()) share(d_s, stage);
    if (active && results_.k.wanted()) {
      if constexpr (is_half) row_scales_.apply(d_s, d_k_);
      ScoreFragments rounded;
      round(rounded, d_s);
      add_product(d_k_, rounded, tiles_.other(stage, 0));
    }
    if (results_.q.wanted() && threadIdx.x == 0) tiles_.wait_for_turn();
    __syncthreads();  // D is there, and what the blocks before have added to d_q
    if (results_.q.wanted()) add_queries(stage);
  }
  __device__ __forceinline__ static void round(ScoreFragments& rounded, const Scores& x) {
#pragma unroll
    for (int i = 0; i < span / 4; ++i) {
      rounded[0][i / 4][i % 4] = packed<E>(x[0][i / 2][i % 2 * 2], x[0][i / 2][i % 2 * 2 + 1]);
    }
  }
  /// d_v += P^T d_o, with the residual of P where d_v has the digits for it.
  __device__ __forceinline__ void add_values(Scores& weights, const typename Tiles::Other& d_o) {
    ScoreFragments rounded;
    round(rounded, weights);
    add_product(d_v_, rounded, d_o);
    if (results_.v.view.dtype == element_dtype<E>) return;
#pragma unroll
    for (int i = 0; i < span / 4; ++i) {
      const float2 near = unpacked<E>(rounded[0][i / 4][i % 4]);
      weights[0][i / 2][i % 2 * 2] -= near.x;
      weights[0][i / 2][i % 2 * 2 + 1] -= near.y;
    }
    round(rounded, weights);
    add_product(d_v_, rounded, d_o);
  }

  /// Scores s become weights P, and the products d_s = v d_o^T the gradients D of scores.
  template <bool cut>
  __device__ __forceinline__ void weigh(Scores& s, Scores& d_s, int stage) const {
#pragma unroll
    for (int j = 0; j < span / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = tiles_.statistics[stage].rows[j * 8 + 2 * self_.member + i % 2];
        // As in forward, the product of score and scale is not rounded.
        const float below = std::fma(s[0][j][i], a_.scale, -x.x);
        const float weight = ptx::exp2_flushed(std::fma(below, log2_e, -x.y));
        const bool hidden = cut && mine() + i / 2 * 8 + self_.group >= __float_as_int(x.w);
        d_s[0][j][i] = hidden ? 0.0f : weight * (d_s[0][j][i] - x.z);
        s[0][j][i] = hidden ? 0.0f : weight * weight_scale;
      }
    }
  }
  /// Puts the warp's D^T into shared memory, that of f16 times the scales of queries.
  __device__ __forceinline__ void share(const Scores& d_s, int stage) const {
#pragma unroll
    for (int j = 0; j < span / 8; ++j) {
      const int column = j * 8 + 2 * self_.member;
      const float* const scales = tiles_.statistics[stage].scales + column;
      const float first = is_half ? scales[0] : 1.0f, second = is_half ? scales[1] : 1.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        tiles_.score_tile().pair(self_.warp * 16 + half * 8 + self_.group, column) =
            packed<E>(d_s[0][j][2 * half] * first, d_s[0][j][2 * half + 1] * second);
      }
    }
  }

  /// Adds the block's part D k to d_q of the tile. A warp has some columns of all queries.
  __device__ __forceinline__ void add_queries(int stage) const {
    const int from = at_.done;
    const bool last = at_.first == 0;
    const bool zeroed = tiles_.is_partial(from) && zero_nonfinite(tiles_.own(0));  // D may be 0
    QuerySums sums = {};
#pragma unroll
    for (int k = 0; k < side; k += 16) {
      unsigned a[span / 16][4];
#pragma unroll
      for (int t = 0; t < span / 16; ++t) tiles_.score_tile().load_a_transposed(a[t], k, t * 16);
#pragma unroll
      for (int j = 0; j < columns / 8; j += 2) {
        unsigned b[4];
        tiles_.own(0).load_b(b, k, self_.warp * columns + j * 8);
#pragma unroll
        for (int t = 0; t < span / 16; ++t) {
          mma<E>(sums[t][j], a[t], {b[0], b[1]});
          mma<E>(sums[t][j + 1], a[t], {b[2], b[3]});
        }
      }
    }
    add_parts(sums, from, stage, tiles_.turn(from) > 0, !last);
    if (last) store_queries(sums, from, stage);
    if (!zeroed) return;
    __syncthreads();
    tiles_.fetch_own(0, a_.k, a_.d);
    ptx::copy_commit();
  }
  /// sums = scale sums + the parts of the blocks before, stored for those after.
  __device__ __forceinline__ void add_parts(QuerySums& sums, int from, int stage, bool before,
                                            bool after) const {
    float4* const parts = reinterpret_cast<float4*>(results_.sums) +
                          tiles_.index_of(from) * (span * width / 4) + self_.thread;
#pragma unroll
    for (int t = 0; t < span / 16; ++t) {
      const float* const scales = tiles_.statistics[stage].scales + t * 16 + self_.group;
      const float first = is_half ? a_.scale / scales[0] : a_.scale,
                  second = is_half ? a_.scale / scales[8] : a_.scale;
#pragma unroll
      for (int j = 0; j < columns / 8; ++j) {
        float4& part = parts[(t * (columns / 8) + j) * static_cast<int>(threads)];
        const float4 x = before ? part : make_float4(0, 0, 0, 0);
        float(&sum)[4] = sums[t][j];
        sum[0] = std::fma(sum[0], first, x.x);
        sum[1] = std::fma(sum[1], first, x.y);
        sum[2] = std::fma(sum[2], second, x.z);
        sum[3] = std::fma(sum[3], second, x.w);
        if (after) part = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
    }
  }
  /// d_q of a tile goes through the place of its queries.
  __device__ __forceinline__ void store_queries(const QuerySums& sums, int from, int stage) const {
    const Staging<E, width> staging{reinterpret_cast<float*>(tiles_.other(stage, 0).data)};
#pragma unroll
    for (int i = 0; i < span / 16 * (columns / 8); ++i) {
      const int t = i / (columns / 8), j = i % (columns / 8);
      staging.put(sums[t][j], t * 16, self_.warp * columns + j * 8, 1.0f, 1.0f);
    }
    __syncthreads();
    staging.template store<true>(a_, at_.offsets, from, min(span, a_.rows - from), results_.q,
                                 a_.d);
  }

  /// Stores d_k and d_v.
  __device__ __forceinline__ void epilogue() const {
    if (results_.k.wanted()) {
      store_keys(d_k_, is_half ? a_.scale / row_scales_.scale[0] : a_.scale,
                 is_half ? a_.scale / row_scales_.scale[1] : a_.scale, results_.k, a_.d);
    }
    if (!results_.v.wanted()) return;
    store_keys(d_v_, 1.0f / weight_scale, 1.0f / weight_scale, results_.v, a_.e);
    if (at_.has_nonfinite) add_nonfinite();
  }
  __device__ __forceinline__ void store_keys(const float (&sums)[1][width / 8][4], float first,
                                             float second, const Result& to, int features) const {
    const Staging<E, width> staging{dynamic_shared<float>()};
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      staging.put(sums[0][j], self_.warp * 16, j * 8, first, second);
    }
    __syncthreads();
    staging.template store<false>(a_, at_.offsets, at_.first, min(side, a_.m - at_.first), to,
                                  features);
    __syncthreads();
  }
  /// Adds nonfinite d_o, which zero_nonfinite() zeroed, to the gradients that they belong to.
  __device__ __forceinline__ void add_nonfinite() const {
#pragma unroll 1
    for (int i = self_.thread; i < side * a_.e; i += static_cast<int>(threads)) {
      const int key = at_.first + i / a_.e, column = i % a_.e;
      if (key >= a_.m) break;
      const float more = nonfinite_sum<true, E>(a_, at_.offsets, a_.d_o, 0, a_.rows, column,
                                                [&](int query) { return key < a_.limit(query); });
      if (!is_nonfinite(more)) continue;
      const AttentionView& out = results_.v.view;
      put_element(out.data, out.dtype, at_.offsets.key(out, key) + column * out.step, more, true);
    }
  }

  const Attention<float>& a_;
  const Results& results_;
  Place& at_;
  Tiles tiles_;
  Thread self_;
  RowScales row_scales_;
  float d_k_[1][width / 8][4] = {}, d_v_[1][width / 8][4] = {};
};

template <class E, int width>
__global__ void __launch_bounds__(threads, 2)
    differentiate_fragments(Attention<float> a, Results results, int tiles, unsigned* tickets) {
  __shared__ Statistics statistics[2];
  __shared__ Place place;
  if (threadIdx.x == 0) {
    const unsigned ticket = tickets != nullptr ? atomicAdd(tickets, 1u) : blockIdx.x;
    const int head = static_cast<int>(ticket / static_cast<unsigned>(tiles)),
              tile = static_cast<int>(ticket % static_cast<unsigned>(tiles));
    place = {
        {head / a.key_heads, head % a.key_heads}, head, (tiles - 1 - tile) * side, -1, false, 0.0f};
  }
  __syncthreads();
  BackwardBlock<E, width>(a, results, place, statistics).run();
}

constexpr std::size_t reserved_bytes = 1024, static_bytes = 2 * sizeof(Statistics) + sizeof(Place);
constexpr std::size_t most_bytes = BackwardTiles<__nv_bfloat16, 128>::shared_bytes + static_bytes;
static_assert(2 * (most_bytes + reserved_bytes) <= 164 * 1024 && most_bytes <= 99 * 1024);

template <class E>
void run_fragments(const View& on, const Attention<float>& a, const Results& results,
                   std::int64_t heads, unsigned* tickets) {
  const int tiles = (a.m + side - 1) / side;
  const std::int64_t blocks = heads * tiles;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", a.m,
        " keys is beyond what a device takes at once");
  const auto run_width = [&]<int width>(std::integral_constant<int, width>) {
    run(Queue(on), differentiate_fragments<E, width>, static_cast<unsigned>(blocks), threads,
        BackwardTiles<E, width>::shared_bytes, a, results, tiles, tickets);
  };
  attention_width(a.d, a.e) == 64 ? run_width(std::integral_constant<int, 64>{})
                                  : run_width(std::integral_constant<int, 128>{});
}

}  // namespace

bool attention_backward_mma(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
                            std::int64_t heads, const AttentionSpace& space, float* words) {
  if (a.mean == nullptr || a.m == 0 || heads == 0 || !supports_mma(a)) return false;
  if (!a.d_o.packed || a.d_o.dtype != a.q.dtype) return false;
  for (const Grad* g : {&d.q, &d.k, &d.v}) {
    if (g->wanted() && !Result::suits(*g, a.q.dtype)) return false;
  }
  Results results{Result(d.q), Result(d.k), Result(d.v)};
  results.sizes = words + space.sizes;
  unsigned* tickets = nullptr;
  if (space.turns < space.end) {
    results.sums = words + space.sums;
    results.turns = reinterpret_cast<unsigned*>(words + space.turns);
    tickets = reinterpret_cast<unsigned*>(words + space.end - 1);
  }
  (a.q.dtype == bf16 ? run_fragments<__nv_bfloat16> : run_fragments<__half>)(on, a, results, heads,
                                                                             tickets);
  return true;
}

}  // namespace quipu::detail::on_cuda
