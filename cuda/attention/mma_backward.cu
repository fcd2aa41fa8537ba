// Softmax attention, backward, by tensor cores, after FlashAttention-2 (Dao 2023,
// arXiv:2307.08691). A block of four warps owns 64 rows of one side, 16 a warp; the other side
// passes by in tiles of 32 rows, double buffered: then two blocks share a multiprocessor of an
// A100, and one fits into the 99 KiB of other cards. A block that owns keys makes their d_k and
// d_v, one that owns queries their d_q:
//   scores and v d_o^T from fragments of both sides, one tile at a time;
//   weights P and gradients of scores D in registers, rounded: A fragments of what follows;
//   d_q += D k, or d_k += D^T q and d_v += P^T d_o.
// Seven products and no workspace: with five, one kernel for all would add to d_q in f32 for every
// block of keys, in an order that blocks would have to wait for, or into a copy of d_q for each of
// them. Only tiles that the diagonal or the last key cuts are masked. f16 has P times 2^15, and D
// times a power of two for each row, which shrinks as larger ones come. Where d_v is f32, P has its
// residual, too. The other side is read once for every 64 rows, mostly from L2. Bound by the tensor
// cores and shared memory: on sm_80 a tile of a warp that owns queries is 96 HMMA (768 cycles)
// beside about 310 other instructions at d = 128 and 48 beside 260 at d = 64; one that owns keys
// 128 beside 710, and 64 (512 cycles) beside 530, masks apart.
//
// sass differentiate_fragments: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 255; dynamic 65536;
// blocks 2@80,90 1@86,89,120
#include <cmath>

#include "mma.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"
#include "row_scales.cuh"

namespace quipu::detail::on_cuda {
namespace {

using namespace attention_mma;

constexpr int side = 64;  // own rows of a block
constexpr int span = 32;  // rows of a tile of the other side: columns of scores of a warp
constexpr float log2_e = 1.44269504f;

/// The gradients that a launch stores; either may be missing.
struct Results {
  AttentionView first, second;  // d_q alone, or d_k and d_v
  bool add_first = false, add_second = false;
};

/// Scores of a warp: its 16 rows and a tile of the other side.
using Scores = float[1][span / 8][4];
using ScoreFragments = unsigned[1][span / 16][4];

/// A fragments of 16 rows that stay in registers.
template <class Element, int columns>
struct FragmentRows {
  using E = Element;
  static constexpr int width = columns;
  __device__ __forceinline__ void load_a(unsigned (&r)[4], int, int column) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = fragments[column / 16][i];
  }
  unsigned fragments[columns / 16][4];
};

/// The work of a block; members are what each thread holds.
template <class E, int width, bool of_queries>
class BackwardBlock {
 public:
  using Own = SwizzledTile<E, width, side>;
  using Other = SwizzledTile<E, width, span>;
  static constexpr std::size_t shared_bytes = 2 * Own::bytes + 4 * Other::bytes;

  /// `statistics` of a tile of queries: log-sum-exp, its low part, row sum of o * d_o, number of
  /// keys.
  __device__ __forceinline__ BackwardBlock(const Attention<float>& call, const Results& results,
                                           float4 (*statistics)[span], int tiles)
      : a_(call), results_(results), statistics_(statistics) {
    const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(tiles));
    const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
    offsets_ = {head / a_.key_heads, head % a_.key_heads};
    first_ = (of_queries ? tiles - 1 - tile : tile) * side;
    mine_ = first_ + self_.warp * 16;
    end_ = of_queries ? a_.most_keys(first_, first_ + side) : a_.rows;
  }

  __device__ __forceinline__ void run() {
    fetch_own(own(0), of_queries ? a_.q : a_.k, a_.d);
    fetch_own(own(1), of_queries ? a_.d_o : a_.v, a_.e);
    ptx::copy_commit();
    Loader load_keys(start_of(a_.k), a_.k.token), load_values(start_of(a_.v), a_.v.token);
    const auto fetch = [&](int from, int stage) {
      if constexpr (of_queries) {
        load_keys.fetch(other(stage, 0), a_.k.token, end_ - from, a_.d);
        load_values.fetch(other(stage, 1), a_.v.token, end_ - from, a_.e);
      } else {
        fetch_queries(other(stage, 0), a_.q, from, a_.d);
        fetch_queries(other(stage, 1), a_.d_o, from, a_.e);
      }
      ptx::copy_commit();
    };
    int from = next_tile(0);
    if (from < end_) fetch(from, 0);
    if constexpr (of_queries) load_own();
#pragma unroll 1
    for (int stage = 0; from < end_; stage ^= 1) {
      if (!of_queries && threadIdx.x < span) {
        const int row = static_cast<int>(threadIdx.x);
        statistics_[stage][row] = statistics_of(from + row);
      }
      ptx::copy_wait<0>();
      __syncthreads();  // the tile is there, and nobody reads the one before any more
      const int next = next_tile(from + span);
      if (next < end_) fetch(next, stage ^ 1);
      add_tile(from, stage);
      from = next;
    }
    ptx::copy_wait<0>();
    __syncthreads();  // results overwrite everything
    epilogue();
  }

 private:
  static constexpr bool is_half = std::is_same_v<E, __half>;
  /// P of f16 is raised by a power of two: 2^-24 is its smallest number.
  static constexpr float weight_scale = is_half && !of_queries ? 0x1p15f : 1.0f;
  using Loader = TileLoader<Other, static_cast<int>(threads)>;

  __device__ __forceinline__ Own own(int input) const {
    return {dynamic_shared<uint4>() + input * Own::size};
  }
  __device__ __forceinline__ Other other(int stage, int input) const {
    return {dynamic_shared<uint4>() + 2 * Own::size + (2 * stage + input) * Other::size};
  }
  __device__ __forceinline__ int own_end() const {
    return of_queries ? a_.rows : a_.m;
  }
  __device__ __forceinline__ const E* start_of(const AttentionView& x) const {
    return static_cast<const E*>(x.data) + offsets_.key(x, 0);
  }
  /// The next tile that the causal mask does not hide.
  __device__ __forceinline__ int next_tile(int from) const {
    while (!of_queries && from < end_ && a_.most_keys(from, from + span) <= first_) from += span;
    return from;
  }
  __device__ __forceinline__ void fetch_own(const Own& tile, const AttentionView& x,
                                            int features) const {
    fetch_rows<static_cast<int>(threads)>(tile, features, [&](int row) -> const E* {
      if (first_ + row >= own_end()) return nullptr;
      return static_cast<const E*>(x.data) + offsets_.start<of_queries>(a_, x, first_ + row);
    });
  }
  __device__ __forceinline__ void fetch_queries(const Other& tile, const AttentionView& x, int from,
                                                int features) const {
    const auto row_at = [&](int row) {
      return static_cast<const E*>(x.data) + offsets_.query(a_, x, from + row);
    };
    const int rows = min(span, a_.rows - from);
    if (a_.is_in_one_head(from, rows)) {
      Loader(row_at(0), x.token).fetch(tile, x.token, rows, features);
    } else {
      fetch_rows<static_cast<int>(threads)>(
          tile, features, [&](int row) { return row < rows ? row_at(row) : nullptr; });
    }
  }
  __device__ __forceinline__ float4 statistics_of(int row) const {
    if (row >= a_.rows) return make_float4(0, 0, 0, 0);
    const std::int64_t at = offsets_.statistic(a_, row);
    return make_float4(a_.lse[at], a_.rest_of(at) * log2_e, a_.mean[at],
                       __int_as_float(a_.limit(row)));
  }
  /// What a block of queries keeps in registers: their fragments and statistics.
  __device__ __forceinline__ void load_own() {
    ptx::copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int c = 0; c < width; c += 16) {
      own(0).load_a(own_rows_[0].fragments[c / 16], self_.warp * 16, c);
      own(1).load_a(own_rows_[1].fragments[c / 16], self_.warp * 16, c);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      own_statistics_[half] = statistics_of(mine_ + half * 8 + self_.group);
    }
  }
  /// sums = own rows other^T of an input.
  __device__ __forceinline__ void multiply_own(Scores& sums, int input, int stage) const {
    if constexpr (of_queries) {
      add_product_transposed(sums, own_rows_[input], 0, other(stage, input));
    } else {
      add_product_transposed(sums, own(input), self_.warp * 16, other(stage, input));
    }
  }

  /// Adds a tile of the other side to the gradients.
  __device__ __forceinline__ void add_tile(int from, int stage) {
    const int least =
        of_queries ? a_.least_keys(first_, first_ + side) : a_.least_keys(from, from + span);
    const bool partial = a_.causal && least < min((of_queries ? from + span : first_ + side), a_.m);
    if (!of_queries && partial) {
      zero_nonfinite(other(stage, 0));  // such a query has no log-sum-exp that is a number
      has_nonfinite_ |= zero_nonfinite(other(stage, 1));  // and such a d_o no mean
    }
    // Whether the warp has any scores here; the causal mask may hide all of them.
    const bool active = mine_ < own_end() && (of_queries ? from < a_.most_keys(mine_, mine_ + 16)
                                                         : mine_ < a_.most_keys(from, from + span));
    Scores s = {}, d_s = {};
    if (active) {
      multiply_own(s, 0, stage);
      multiply_own(d_s, 1, stage);
      const bool cut = of_queries ? from + span > a_.least_keys(mine_, mine_ + 16)
                                  : least < min(mine_ + 16, a_.m);
      cut ? weigh<true>(s, d_s, from, stage) : weigh<false>(s, d_s, from, stage);
    }
    if (of_queries && partial) zero_nonfinite(other(stage, 0));
    if (!active) return;
    if constexpr (!of_queries) {
      if (results_.second.data != nullptr) add_values(s, other(stage, 1));
    }
    if (results_.first.data == nullptr) return;
    if constexpr (is_half) row_scales_.apply(d_s, sums_);
    ScoreFragments rounded;
    round(rounded, d_s);
    add_product(sums_, rounded, other(stage, 0));
  }
  __device__ __forceinline__ static void round(ScoreFragments& rounded, const Scores& x) {
#pragma unroll
    for (int i = 0; i < span / 4; ++i) {
      rounded[0][i / 4][i % 4] = packed<E>(x[0][i / 2][i % 2 * 2], x[0][i / 2][i % 2 * 2 + 1]);
    }
  }
  /// d_v += P^T d_o, with the residual of P where d_v has the digits for it.
  __device__ __forceinline__ void add_values(Scores& weights, const Other& d_o) {
    ScoreFragments rounded;
    round(rounded, weights);
    add_product(second_sums_, rounded, d_o);
    if (results_.second.dtype == element_dtype<E>) return;
#pragma unroll
    for (int i = 0; i < span / 4; ++i) {
      const float2 near = unpacked<E>(rounded[0][i / 4][i % 4]);
      weights[0][i / 2][i % 2 * 2] -= near.x;
      weights[0][i / 2][i % 2 * 2 + 1] -= near.y;
    }
    round(rounded, weights);
    add_product(second_sums_, rounded, d_o);
  }

  /// Scores s become weights P, and the products d_s = d_o v^T (or its transpose) the gradients D
  /// of scores.
  template <bool cut>
  __device__ __forceinline__ void weigh(Scores& s, Scores& d_s, int from, int stage) const {
#pragma unroll
    for (int j = 0; j < span / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = j * 8 + 2 * self_.member + i % 2;
        const float4 x = of_queries ? own_statistics_[i / 2] : statistics_[stage][column];
        // As in forward, the product of score and scale is not rounded.
        const float below = std::fma(s[0][j][i], a_.scale, -x.x);
        const float weight = ptx::exp2_flushed(std::fma(below, log2_e, -x.y));
        const int key = of_queries ? from + column : mine_ + i / 2 * 8 + self_.group;
        const bool hidden = cut && key >= __float_as_int(x.w);
        d_s[0][j][i] = hidden ? 0.0f : weight * (d_s[0][j][i] - x.z);
        s[0][j][i] = hidden ? 0.0f : weight * weight_scale;
      }
    }
  }

  /// Stores a warp's 16 rows of the gradients, d_q alone or d_k and d_v.
  __device__ __forceinline__ void epilogue() {
    if (results_.first.data != nullptr) {
      const float factors[2] = {is_half ? a_.scale / row_scales_.scale[0] : a_.scale,
                                is_half ? a_.scale / row_scales_.scale[1] : a_.scale};
      store_rows(sums_, factors, results_.first, results_.add_first, a_.d);
    }
    if constexpr (!of_queries) {
      if (results_.second.data == nullptr) return;
      constexpr float factors[2] = {1.0f / weight_scale, 1.0f / weight_scale};
      store_rows(second_sums_, factors, results_.second, results_.add_second, a_.e);
      if (has_nonfinite_) add_nonfinite();
    }
  }
  /// Adds nonfinite d_o, which zero_nonfinite() zeroed, to the gradients that they belong to.
  __device__ __forceinline__ void add_nonfinite() const {
#pragma unroll 1
    for (int i = self_.lane; i < 16 * a_.e; i += 32) {
      const int key = mine_ + i / a_.e, column = i % a_.e;
      if (key >= a_.m) break;
      const float more = nonfinite_sum<true, E>(a_, offsets_, a_.d_o, 0, a_.rows, column,
                                                [&](int query) { return key < a_.limit(query); });
      if (!is_nonfinite(more)) continue;
      const AttentionView& out = results_.second;
      put_element(out.data, out.dtype, offsets_.key(out, key) + column * out.step, more, true);
    }
  }
  /// Accumulators go through the warp's own part of shared memory to a gradient (=|+=).
  __device__ __forceinline__ void store_rows(const float (&sums)[1][width / 8][4],
                                             const float (&factors)[2], const AttentionView& out,
                                             bool add, int features) const {
    constexpr int pitch = width + 8, chunks = width / 8;
    float* const staging = dynamic_shared<float>() + self_.warp * 16 * pitch;
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (self_.group + half * 8) * pitch + j * 8 + 2 * self_.member;
        reinterpret_cast<float2*>(staging)[at / 2] = make_float2(
            sums[0][j][2 * half] * factors[half], sums[0][j][2 * half + 1] * factors[half]);
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int i = self_.lane; i < 16 * chunks; i += 32) {
      const int row = i / chunks, column = i % chunks * 8;
      if (mine_ + row >= own_end() || column >= features) continue;
      const std::int64_t to = offsets_.start<of_queries>(a_, out, mine_ + row) + column * out.step;
      const float4 low = reinterpret_cast<const float4*>(staging)[(row * pitch + column) / 4];
      const float4 high = reinterpret_cast<const float4*>(staging)[(row * pitch + column) / 4 + 1];
      if (out.packed && out.dtype == element_dtype<E>) {
        Packed<float, E>::put(out.data, out.dtype, to,
                              {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, add);
      } else if (out.packed && out.dtype == f32) {
        Packed<float, float>::put(out.data, f32, to, {low.x, low.y, low.z, low.w}, add);
        Packed<float, float>::put(out.data, f32, to + 4, {high.x, high.y, high.z, high.w}, add);
      } else {
#pragma unroll 1
        for (int j = 0; j < 8; ++j) {
          put_element(out.data, out.dtype, to + j * out.step, staging[row * pitch + column + j],
                      add);
        }
      }
    }
    __syncwarp();
  }

  const Attention<float>& a_;
  const Results& results_;
  float4 (*statistics_)[span];
  Thread self_;
  HeadOffsets offsets_;
  int first_, mine_, end_;  // own rows of the block and of the warp; the end of the other side
  FragmentRows<E, width> own_rows_[2];
  float4 own_statistics_[2];
  RowScales row_scales_;
  bool has_nonfinite_ = false;
  float sums_[1][width / 8][4] = {}, second_sums_[1][of_queries ? 1 : width / 8][4] = {};
};

template <class E, int width, bool of_queries>
__global__ void __launch_bounds__(threads, 2)
    differentiate_fragments(Attention<float> a, Results results, int tiles) {
  __shared__ float4 statistics[2][span];
  BackwardBlock<E, width, of_queries>(a, results, statistics, tiles).run();
}

constexpr std::size_t reserved_bytes = 1024, static_bytes = 2 * span * sizeof(float4);
constexpr std::size_t most_bytes =
    BackwardBlock<__nv_bfloat16, 128, false>::shared_bytes + static_bytes;
static_assert(2 * (most_bytes + reserved_bytes) <= 164 * 1024 && most_bytes <= 99 * 1024);

template <class E, bool of_queries>
void run_side(const View& on, const Attention<float>& a, const Results& results,
              std::int64_t heads) {
  if (results.first.data == nullptr && results.second.data == nullptr) return;
  const int rows = of_queries ? a.rows : a.m, tiles = (rows + side - 1) / side;
  const std::int64_t blocks = heads * tiles;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", rows,
        " rows is beyond what a device takes at once");
  const auto run_width = [&]<int width>(std::integral_constant<int, width>) {
    run(Queue(on), differentiate_fragments<E, width, of_queries>, static_cast<unsigned>(blocks),
        threads, BackwardBlock<E, width, of_queries>::shared_bytes, a, results, tiles);
  };
  std::max(a.d, a.e) <= 64 ? run_width(std::integral_constant<int, 64>{})
                           : run_width(std::integral_constant<int, 128>{});
}

template <class E>
void run_both(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
              std::int64_t heads) {
  const auto view_of = [](const Grad& g) {
    return g.wanted() && g.view.numel() > 0 ? AttentionView(g.view) : AttentionView();
  };
  run_side<E, false>(on, a, {view_of(d.k), view_of(d.v), d.k.add, d.v.add}, heads);
  run_side<E, true>(on, a, {view_of(d.q), {}, d.q.add, false}, heads);
}

}  // namespace

bool attention_backward_mma(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
                            std::int64_t heads) {
  if (a.mean == nullptr || !supports_mma(a)) return false;
  if (!a.d_o.packed || a.d_o.dtype != a.q.dtype) return false;
  (a.q.dtype == bf16 ? run_both<__nv_bfloat16> : run_both<__half>)(on, a, d, heads);
  return true;
}

}  // namespace quipu::detail::on_cuda
