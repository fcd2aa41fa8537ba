// Softmax attention, backward, by tensor cores, after FlashAttention-2 (Dao 2023,
// arXiv:2307.08691). A block of four warps owns 64 rows of one side, 16 a warp, in shared memory;
// the other side passes by in tiles of 32 rows, double buffered: then two blocks share a
// multiprocessor of an A100, and one fits into the 99 KiB of other cards. A block that owns keys
// makes their d_k and d_v, one that owns queries their d_q:
//   scores and v d_o^T from fragments of both sides, one tile at a time;
//   weights P and gradients of scores D in registers, where they are A fragments of what follows;
//   d_q += D k, or d_k += D^T q and d_v += P^T d_o, where D and P are split into hi + residual lo.
// The other side is read once for every 64 rows, mostly from L2. Bound by the tensor cores. Only
// for bf16: D may exceed the range of f16.
//
// sass differentiate_fragments: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 224 232@120
#include <cmath>

#include "mma.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {
namespace {

using namespace attention_mma;
using E = __nv_bfloat16;

constexpr int span = 32;  // rows of a tile of the other side: columns of scores of a warp

template <int width>
using OwnTile = Tile<E, width>;
template <int width>
using OtherTile = Tile<E, width, span>;

/// The gradients that a launch stores; either may be missing.
struct Results {
  AttentionView first, second;  // d_q alone, or d_k and d_v
  bool add_first = false, add_second = false;
};

/// Statistics of a query: log-sum-exp with its low part, row sum of o * d_o, number of keys.
struct Statistics {
  float lse, rest, mean;
  int limit;
};
/// Statistics of a tile of queries in shared memory; loaded at each use, which saves registers.
struct TileStatistics {
  __device__ __forceinline__ void put(int i, const Statistics& x) {
    lse[i] = x.lse;
    rest[i] = x.rest;
    mean[i] = x.mean;
    limit[i] = x.limit;
  }
  __device__ __forceinline__ Statistics at(int i) const {
    return {lse[i], rest[i], mean[i], limit[i]};
  }
  float lse[span], rest[span], mean[span];
  int limit[span];
};
__device__ __forceinline__ Statistics statistics_of(const Attention<float>& a,
                                                    const HeadOffsets& offsets, int row) {
  if (row >= a.rows) return {0, 0, 0, 0};
  const std::int64_t at = offsets.statistic(a, row);
  return {a.lse[at], a.rest_of(at), a.mean[at], a.limit(row)};
}

/// A block's dynamic shared memory: both inputs of its own side, and two stages of both of the
/// other side. The results, in f32, then take the place of the first.
template <int width>
constexpr std::size_t shared_bytes = sizeof(E) * (2 * OwnTile<width>::elements +
                                                  4 * OtherTile<width>::elements);
constexpr std::size_t reserved_bytes = 1024;  // of a block, by the system
static_assert(2 * (shared_bytes<128> + 2 * sizeof(TileStatistics) + reserved_bytes) <= 164 * 1024);
static_assert(shared_bytes<128> + 2 * sizeof(TileStatistics) <= 99 * 1024);

/// Whether the causal mask hides part of a tile of scores.
__device__ __forceinline__ bool is_partial(const Attention<float>& a, int first, int from,
                                           bool of_queries) {
  return of_queries ? a.least_keys(first, first + side) < min(from + span, a.m)
                    : a.least_keys(from, from + span) < min(first + side, a.m);
}

/// Epilogue: a warp's 16 rows of accumulators go through its own part of shared memory to a
/// gradient (=|+=).
template <bool of_queries, int width>
__device__ __forceinline__ void store_rows(float (&sums)[width / 8][4], float scale, float* staging,
                                           const Attention<float>& a, const HeadOffsets& offsets,
                                           const AttentionView& out, bool add, int first, int end,
                                           int features) {
  constexpr int pitch = width + 8, chunks = width / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, member = lane % 4;
#pragma unroll
  for (int j = 0; j < width / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = (group + half * 8) * pitch + j * 8 + 2 * member;
      reinterpret_cast<float2*>(staging)[at / 2] =
          make_float2(sums[j][2 * half] * scale, sums[j][2 * half + 1] * scale);
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < 16 * chunks; i += 32) {
    const int row = i / chunks, column = i % chunks * 8;
    if (first + row >= end || column >= features) continue;
    const std::int64_t to = offsets.start<of_queries>(a, out, first + row) + column * out.step;
    const float4 low = reinterpret_cast<const float4*>(staging)[(row * pitch + column) / 4];
    const float4 high = reinterpret_cast<const float4*>(staging)[(row * pitch + column) / 4 + 1];
    if (out.packed && out.dtype == bf16) {
      Packed<float, E>::put(out.data, bf16, to,
                            {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, add);
    } else if (out.packed && out.dtype == f32) {
      Packed<float, float>::put(out.data, f32, to, {low.x, low.y, low.z, low.w}, add);
      Packed<float, float>::put(out.data, f32, to + 4, {high.x, high.y, high.z, high.w}, add);
    } else {
#pragma unroll 1
      for (int j = 0; j < 8; ++j) {
        put_element(out.data, out.dtype, to + j * out.step, staging[row * pitch + column + j], add);
      }
    }
  }
  __syncwarp();
}

/// sums += own other^T for the warp's 16 rows and a tile of the other side.
template <int width>
__device__ __forceinline__ void add_scores(float (&sums)[span / 8][4], const OwnTile<width>& own,
                                           const OtherTile<width>& other, int row, int features) {
#pragma unroll
  for (int c = 0; c < width / 16; ++c) {
    if (c * 16 >= features) break;
    unsigned left[4];
    own.load_a(left, row, c * 16);
#pragma unroll
    for (int j = 0; j < span / 16; ++j) {
      unsigned right[4];
      other.load_b_transposed(right, j * 16, c * 16);
      multiply<E>(sums[2 * j], left, {right[0], right[1]});
      multiply<E>(sums[2 * j + 1], left, {right[2], right[3]});
    }
  }
}

/// sums += weights other.
template <int width>
__device__ __forceinline__ void add_products(float (&sums)[width / 8][4],
                                             const float (&weights)[span / 8][4],
                                             const OtherTile<width>& other, int features) {
#pragma unroll
  for (int j = 0; j < span / 16; ++j) {
    SplitFragment left;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left.set<E>(i, weights[2 * j + i / 2][i % 2 * 2], weights[2 * j + i / 2][i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int c = 0; c < width / 16; ++c) {
      if (c * 16 >= features) break;
      unsigned right[4];
      other.load_b(right, j * 16, c * 16);
      multiply<E>(sums[2 * c], left, {right[0], right[1]});
      multiply<E>(sums[2 * c + 1], left, {right[2], right[3]});
    }
  }
}

/// Scores s become weights P, and the products d_s = d_o v^T (or its transpose) the gradients D of
/// scores. `from` is the first row of the other side's tile, `row` the lane's first own row.
template <bool of_queries>
__device__ __forceinline__ void weigh(float (&s)[span / 8][4], float (&d_s)[span / 8][4],
                                      float scale, const Statistics (&of_rows)[2],
                                      const TileStatistics& of_columns, int member, int from,
                                      int row) {
#pragma unroll
  for (int j = 0; j < span / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = j * 8 + 2 * member + i % 2;
      const Statistics x = of_queries ? of_rows[i / 2] : of_columns.at(column);
      const int key = of_queries ? from + column : row + i / 2 * 8;
      const bool attends = key < x.limit;
      const float weight =
          attends ? std::exp((scaled_score(s[j][i], scale) - x.lse) - x.rest) : 0.0f;
      s[j][i] = weight;
      d_s[j][i] = attends ? weight * (d_s[j][i] - x.mean) : 0.0f;
    }
  }
}

/// Epilogue: stores a warp's 16 rows of the gradients, d_q alone or d_k and d_v.
template <bool of_queries, int width>
__device__ __forceinline__ void store_results(float (&sums)[width / 8][4],
                                              float (&second_sums)[of_queries ? 1 : width / 8][4],
                                              const Results& results, E* smem,
                                              const Attention<float>& a, const HeadOffsets& offsets,
                                              int row, int end, bool has_nonfinite) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* const staging = reinterpret_cast<float*>(smem) + warp * 16 * (width + 8);
  if (results.first.data != nullptr) {
    store_rows<of_queries, width>(sums, a.scale, staging, a, offsets, results.first,
                                  results.add_first, row, end, a.d);
  }
  if constexpr (!of_queries) {
    if (results.second.data == nullptr) return;
    store_rows<of_queries, width>(second_sums, 1.0f, staging, a, offsets, results.second,
                                  results.add_second, row, end, a.e);
    for (int i = lane; has_nonfinite && i < 16 * a.e; i += 32) {  // what was zeroed
      const int key = row + i / a.e, column = i % a.e;
      if (key >= end) break;
      const float more = nonfinite_sum<true, E>(a, offsets, a.d_o, 0, a.rows, column,
                                                [&](int query) { return key < a.limit(query); });
      if (!is_nonfinite(more)) continue;
      const AttentionView& out = results.second;
      put_element(out.data, out.dtype, offsets.key(out, key) + column * out.step, more, true);
    }
  }
}

template <int width, bool of_queries>
__global__ void __launch_bounds__(threads)
    differentiate_fragments(Attention<float> a, Results results, int tiles) {
  __shared__ TileStatistics column_statistics[2];
  E* const smem = dynamic_shared<E>();
  const OwnTile<width> own{smem}, own_second{smem + own.elements};
  const auto other_at = [&](int stage, int input) {
    constexpr int elements = OtherTile<width>::elements;
    return OtherTile<width>{smem + 2 * own.elements + (2 * stage + input) * elements};
  };
  const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(tiles));
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const HeadOffsets offsets{head / a.key_heads, head % a.key_heads};
  const int first = (of_queries ? tiles - 1 - tile : tile) * side;
  const int own_end = of_queries ? a.rows : a.m;
  const int other_end = of_queries ? a.most_keys(first, first + side) : a.rows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = lane / 4, member = lane % 4;
  // The next tile that the causal mask does not hide.
  const auto next_from = [&](int from) {
    while (!of_queries && from < other_end && a.most_keys(from, from + span) <= first) from += span;
    return from;
  };
  const auto fetch = [&](int from, int stage) {
    other_at(stage, 0).template fetch<!of_queries>(a, offsets, of_queries ? a.k : a.q, from,
                                                   other_end, a.d);
    other_at(stage, 1).template fetch<!of_queries>(a, offsets, of_queries ? a.v : a.d_o, from,
                                                   other_end, a.e);
  };
  own.template fetch<of_queries>(a, offsets, of_queries ? a.q : a.k, first, own_end, a.d);
  own_second.template fetch<of_queries>(a, offsets, of_queries ? a.d_o : a.v, first, own_end, a.e);
  int from = next_from(0);
  if (from < other_end) fetch(from, 0);
  ptx::copy_commit();

  Statistics row_statistics[2];
  if constexpr (of_queries) {
    row_statistics[0] = statistics_of(a, offsets, first + warp * 16 + group);
    row_statistics[1] = statistics_of(a, offsets, first + warp * 16 + group + 8);
  }
  float sums[width / 8][4] = {}, second_sums[of_queries ? 1 : width / 8][4] = {};
  bool has_nonfinite = false;
#pragma unroll 1
  for (int stage = 0; from < other_end; stage ^= 1) {
    if (!of_queries && threadIdx.x < span) {
      column_statistics[stage].put(static_cast<int>(threadIdx.x),
                                   statistics_of(a, offsets, from + static_cast<int>(threadIdx.x)));
    }
    ptx::copy_wait<0>();
    __syncthreads();  // the tile is there, and nobody reads the one before any more
    const int next = next_from(from + span);
    if (next < other_end) fetch(next, stage ^ 1);
    ptx::copy_commit();
    const OtherTile<width> other = other_at(stage, 0), other_second = other_at(stage, 1);
    const bool partial = is_partial(a, first, from, of_queries);
    if (!of_queries && partial) {
      other.zero_nonfinite(0, span, a.d);  // such a query has no log-sum-exp that is a number
      has_nonfinite |= other_second.zero_nonfinite(0, span, a.e);  // and such a d_o no mean
    }
    float s[span / 8][4] = {}, d_s[span / 8][4] = {};
    add_scores<width>(s, own, other, warp * 16, a.d);
    add_scores<width>(d_s, own_second, other_second, warp * 16, a.e);
    weigh<of_queries>(s, d_s, a.scale, row_statistics, column_statistics[stage], member, from,
                      first + warp * 16 + group);
    if (of_queries && partial) other.zero_nonfinite(0, span, a.d);
    if (results.first.data != nullptr) add_products<width>(sums, d_s, other, a.d);
    if constexpr (!of_queries) {
      if (results.second.data != nullptr) add_products<width>(second_sums, s, other_second, a.e);
    }
    from = next;
  }
  ptx::copy_wait<0>();
  __syncthreads();  // results overwrite everything

  store_results<of_queries, width>(sums, second_sums, results, smem, a, offsets, first + warp * 16,
                                   own_end, has_nonfinite);
}

template <bool of_queries>
void run_side(const View& on, const Attention<float>& a, const Results& results,
              std::int64_t heads) {
  if (results.first.data == nullptr && results.second.data == nullptr) return;
  const int rows = of_queries ? a.rows : a.m, tiles = (rows + side - 1) / side;
  const std::int64_t blocks = heads * tiles;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", rows,
        " rows is beyond what a device takes at once");
  const auto run_width = [&]<int width>(std::integral_constant<int, width>) {
    run(Queue(on), differentiate_fragments<width, of_queries>, static_cast<unsigned>(blocks),
        threads, shared_bytes<width>, a, results, tiles);
  };
  std::max(a.d, a.e) <= 64 ? run_width(std::integral_constant<int, 64>{})
                           : run_width(std::integral_constant<int, 128>{});
}

}  // namespace

bool attention_backward_mma(const View& on, const Attention<float>& a, const AttentionInputGrads& d,
                            std::int64_t heads) {
  if (a.q.dtype != bf16 || a.mean == nullptr || !supports_mma(a)) return false;
  if (!a.d_o.packed || a.d_o.dtype != bf16) return false;
  const auto view_of = [](const Grad& g) {
    return g.wanted() && g.view.numel() > 0 ? AttentionView(g.view) : AttentionView();
  };
  run_side<false>(on, a, {view_of(d.k), view_of(d.v), d.k.add, d.v.add}, heads);
  run_side<true>(on, a, {view_of(d.q), {}, d.q.add, false}, heads);
  return true;
}

}  // namespace quipu::detail::on_cuda
