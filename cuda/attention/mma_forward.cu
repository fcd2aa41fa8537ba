// Softmax attention, forward, by tensor cores, after FlashAttention-2 (Dao 2023, arXiv:2307.08691).
// A block of four warps has 64 queries, 16 a warp, as A fragments in registers; keys and values
// pass by in tiles of 64, double buffered. Scores, weights and accumulators never leave registers:
// the accumulators of q k^T are the A fragments of P v. Weights are split into hi + residual lo. q
// and o move once, k and v once for every 64 queries, mostly from L2. Bound by the two products, of
// which the second one counts twice.
//
// sass attend_fragments: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 192
#include <cmath>

#include "mma.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {
namespace {

using namespace attention_mma;

/// Reduces over the four lanes that share a row of a fragment.
template <class Combine>
__device__ __forceinline__ float fold_row(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(all_lanes, value, 1));
  return combine(value, __shfl_xor_sync(all_lanes, value, 2));
}

/// Running softmax of two rows of a warp's fragments, `group` and `group + 8`: the maximum, and a
/// lane's part of the sum of weights (Milakov and Gimelshein 2018, arXiv:1805.02867).
struct OnlineSoftmax {
  float largest[2], sum[2];
};

/// One step of the running softmax: scores of 64 keys become weights, and the accumulators are
/// rescaled to the new maximum.
template <int width>
__device__ __forceinline__ void softmax_step(float (&s)[side / 8][4], float (&result)[width / 8][4],
                                             OnlineSoftmax& softmax, const int (&limits)[2],
                                             int from, float scale) {
  const int member = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = softmax.largest[half];
#pragma unroll
    for (int j = 0; j < side / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = s[j][2 * half + i];
        const bool attends = from + j * 8 + 2 * member + i < limits[half];
        score = attends ? score * scale : -std::numeric_limits<float>::infinity();
        most = score > most ? score : most;  // NaN is passed over: it shows in the sum
      }
    }
    most = fold_row(most, [](float a, float b) { return a > b ? a : b; });
    const float rescale = std::exp(softmax.largest[half] - most);
    softmax.largest[half] = most;
    softmax.sum[half] *= rescale;
#pragma unroll
    for (int j = 0; j < side / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = s[j][2 * half + i];
        score = std::exp(score - most);
        softmax.sum[half] += score;
      }
    }
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      result[j][2 * half] *= rescale;
      result[j][2 * half + 1] *= rescale;
    }
  }
}

/// Divides by the sums and stores o and the log-sum-exps. A warp's 16 rows go through shared
/// memory, so that they are stored in whole vectors.
template <class E, int width>
__device__ __forceinline__ void epilogue(const float (&result)[width / 8][4],
                                         const OnlineSoftmax& softmax, const int (&limits)[2],
                                         const Attention<float>& a, const HeadOffsets& offsets,
                                         const Tile<E, width>& out, const Thread& self, int first,
                                         bool has_nonfinite) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + self.warp * 16 + self.group + half * 8;
    const float sum = fold_row(softmax.sum[half], [](float x, float y) { return x + y; });
    if (row < a.rows && a.lse != nullptr && self.member == 0) {
      a.put_sum(offsets.statistic(a, row),
                limits[half] > 0 ? softmax.largest[half] : -std::numeric_limits<float>::infinity(),
                sum);
    }
#pragma unroll
    for (int j = 0; j < width / 8; ++j) {
      if (j * 8 >= a.e) break;
      const bool attends = limits[half] > 0;
      *reinterpret_cast<unsigned*>(
          out.at(self.warp * 16 + self.group + half * 8, j * 8 + 2 * self.member)) =
          pair_of<E>(attends ? result[j][2 * half] / sum : 0.0f,
                     attends ? result[j][2 * half + 1] / sum : 0.0f);
    }
  }
  __syncwarp();
  for (int i = self.lane; has_nonfinite && i < 16 * a.e; i += 32) {
    const int row = self.warp * 16 + i / a.e, column = i % a.e;
    const int limit = first + row < a.rows ? a.limit(first + row) : 0;
    const float more =
        nonfinite_sum<false, E>(a, offsets, a.v, 0, limit, column, [](int) { return true; });
    if (is_nonfinite(more)) *out.at(row, column) = converted<E>(more);
  }
  __syncwarp();
  constexpr int chunks = width / 8;
#pragma unroll 2
  for (int i = self.lane; i < 16 * chunks; i += 32) {
    const int row = self.warp * 16 + i / chunks, column = i % chunks * 8;
    if (first + row >= a.rows || column >= a.e) continue;
    const std::int64_t to = offsets.query(a, a.out, first + row) + column;
    static_cast<uint4*>(a.out.data)[to / 8] = *reinterpret_cast<const uint4*>(out.at(row, column));
  }
}

template <class E, int width>
__global__ void __launch_bounds__(threads) attend_fragments(Attention<float> a, int tiles) {
  using Smem = Tile<E, width>;
  E* const smem = dynamic_shared<E>();
  const auto keys = [&](int stage) { return Smem{smem + 2 * stage * Smem::elements}; };
  const auto values = [&](int stage) { return Smem{smem + (2 * stage + 1) * Smem::elements}; };
  const int head = static_cast<int>(blockIdx.x / static_cast<unsigned>(tiles));
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const HeadOffsets offsets{head / a.key_heads, head % a.key_heads};
  // With a causal mask the last queries have most to do, and begin first.
  const int first = (tiles - 1 - tile) * side;
  const int end = a.most_keys(first, first + side), least = a.least_keys(first, first + side);
  const Thread self;

  const Smem queries = keys(1);
  queries.template fetch<true>(a, offsets, a.q, first, a.rows, a.d);
  ptx::copy_commit();
  const auto fetch = [&](int from, int stage) {
    keys(stage).template fetch<false>(a, offsets, a.k, from, end, a.d);
    values(stage).template fetch<false>(a, offsets, a.v, from, end, a.e);
    ptx::copy_commit();
  };
  if (end > 0) {
    fetch(0, 0);
    ptx::copy_wait<1>();
  } else {
    ptx::copy_wait<0>();
  }
  __syncthreads();
  unsigned q[width / 16][4];
#pragma unroll
  for (int c = 0; c < width / 16; ++c) {
    if (c * 16 < a.d) queries.load_a(q[c], self.warp * 16, c * 16);
  }
  __syncthreads();  // keys overwrite the queries

  float result[width / 8][4] = {};
  OnlineSoftmax softmax{
      {std::numeric_limits<float>::lowest(), std::numeric_limits<float>::lowest()}, {}};
  int limits[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + self.warp * 16 + self.group + half * 8;
    limits[half] = row < a.rows ? a.limit(row) : 0;
  }
  int stage = 0;
  bool has_nonfinite = false;
  for (int from = 0; from < end; from += side) {
    if (from + side < end) {
      fetch(from + side, stage ^ 1);
      ptx::copy_wait<1>();
    } else {
      ptx::copy_wait<0>();
    }
    __syncthreads();
    if (from + side > least) has_nonfinite |= values(stage).zero_nonfinite(0, side, a.e);
    float s[side / 8][4] = {};
#pragma unroll
    for (int c = 0; c < width / 16; ++c) {
      if (c * 16 >= a.d) break;
#pragma unroll
      for (int j = 0; j < side / 16; ++j) {
        unsigned k[4];
        keys(stage).load_b_transposed(k, j * 16, c * 16);
        multiply<E>(s[2 * j], q[c], {k[0], k[1]});
        multiply<E>(s[2 * j + 1], q[c], {k[2], k[3]});
      }
    }
    softmax_step<width>(s, result, softmax, limits, from, a.scale);
#pragma unroll
    for (int j = 0; j < side / 16; ++j) {
      SplitFragment weights;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights.set<E>(i, s[2 * j + i / 2][i % 2 * 2], s[2 * j + i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int c = 0; c < width / 16; ++c) {
        if (c * 16 >= a.e) break;
        unsigned v[4];
        values(stage).load_b(v, j * 16, c * 16);
        multiply<E>(result[2 * c], weights, {v[0], v[1]});
        multiply<E>(result[2 * c + 1], weights, {v[2], v[3]});
      }
    }
    __syncthreads();
    stage ^= 1;
  }
  epilogue<E, width>(result, softmax, limits, a, offsets, keys(0), self, first, has_nonfinite);
}

template <class E>
void run_fragments(const View& on, const Attention<float>& a, std::int64_t heads) {
  const int tiles = (a.rows + side - 1) / side;
  const std::int64_t blocks = heads * tiles;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", a.rows,
        " rows is beyond what a device takes at once");
  const auto run_width = [&]<int width>(std::integral_constant<int, width>) {
    run(Queue(on), attend_fragments<E, width>, static_cast<unsigned>(blocks), threads,
        4 * sizeof(E) * Tile<E, width>::elements, a, tiles);
  };
  std::max(a.d, a.e) <= 64 ? run_width(std::integral_constant<int, 64>{})
                           : run_width(std::integral_constant<int, 128>{});
}

}  // namespace

bool attention_forward_mma(const View& on, const Attention<float>& a, std::int64_t heads) {
  if (!supports_mma(a) || !a.out.packed) return false;
  (a.q.dtype == bf16 ? run_fragments<__nv_bfloat16> : run_fragments<__half>)(on, a, heads);
  return true;
}

}  // namespace quipu::detail::on_cuda
