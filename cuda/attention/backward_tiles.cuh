#pragma once
// Backward of attention by tensor cores (mma_backward.cu): what a block has in shared memory, how
// tiles come there, and the order of blocks.
#include <cmath>

#include "row_scales.cuh"
#include "staging.cuh"

namespace quipu::detail::on_cuda::attention_mma {

inline constexpr int side = static_cast<int>(attention_side),
                     span = static_cast<int>(attention_span);
inline constexpr float log2_e = 1.44269504f;

/// The gradients of a launch.
struct Results {
  Result q, k, v;
  float* sums = nullptr;         // workspace (b hk, tile of queries, span width), as fragments lie
  unsigned* turns = nullptr;     // (b hk, tile of queries): how many blocks have added; a ticket
  const float* sizes = nullptr;  // (b hk, query): sums of |d_o|, for f16
};

/// What a tile of queries has in shared memory beside its rows.
struct Statistics {
  float4 rows[span];   // log-sum-exp, its low part, row sum of o * d_o, number of keys
  float scales[span];  // of D of f16
};

/// What a block works on, in shared memory: in registers it would not find room.
struct Place {
  HeadOffsets offsets;
  int head, first;  // of all heads; its first key
  int done;         // the tile that thread 0 has to pass on; -1 at first
  bool has_nonfinite;
  float largest_value;  // finite |v|, for f16
};

/// Tiles of `side` keys, which the block owns, and of `span` queries, which pass by; first rows of
/// k and q, then of v and d_o.
template <class E, int width>
struct BackwardTiles {
  using Own = SwizzledTile<E, width, side>;
  using Other = SwizzledTile<E, width, span>;
  using ScoreTile = SwizzledTile<E, span, side>;
  static constexpr std::size_t shared_bytes = 2 * Own::bytes + 4 * Other::bytes + ScoreTile::bytes;
  static constexpr bool is_half = std::is_same_v<E, __half>;

  __device__ __forceinline__ Own own(int input) const {
    return {dynamic_shared<uint4>() + input * Own::size};
  }
  __device__ __forceinline__ Other other(int stage, int input) const {
    return {dynamic_shared<uint4>() + 2 * Own::size + (2 * stage + input) * Other::size};
  }
  __device__ __forceinline__ ScoreTile score_tile() const {
    return {dynamic_shared<uint4>() + 2 * Own::size + 4 * Other::size};
  }
  /// The next tile that the causal mask does not hide; those without any key are the first block's.
  __device__ __forceinline__ int next_tile(int from) const {
    while (at.first > 0 && from < a.rows && a.most_keys(from, from + span) <= at.first)
      from += span;
    return from;
  }
  /// Of a tile of queries, among all heads.
  __device__ __forceinline__ std::int64_t index_of(int from) const {
    return std::int64_t{at.head} * ((a.rows + span - 1) / span) + from / span;
  }
  /// Whether the causal mask hides some keys of the block from some queries of a tile.
  __device__ __forceinline__ bool is_partial(int from) const {
    return a.causal && a.least_keys(from, from + span) < min(at.first + side, a.m);
  }
  /// How many blocks add to d_q of a tile before this one, which are those of later keys.
  __device__ __forceinline__ int turn(int from) const {
    return max(0, (a.most_keys(from, from + span) - 1) / side - at.first / side);
  }
  /// Publishes what the block has added to d_q of the tile before the one at `from`. By thread 0.
  __device__ __forceinline__ void pass_turn(int from) const {
    if (at.done >= 0 && results.turns != nullptr) {
      __threadfence();
      atomicAdd(results.turns + index_of(at.done), 1u);
    }
    at.done = from;
  }
  /// Until all blocks before this one have added to d_q of the tile. By thread 0.
  __device__ __forceinline__ void wait_for_turn() const {
    const auto before = static_cast<unsigned>(turn(at.done));
    if (before == 0) return;
    unsigned* const passed = results.turns + index_of(at.done);
    while (ptx::load_acquire(passed) < before) __nanosleep(64);
  }

  __device__ __forceinline__ void fetch_own(int input, const AttentionView& x, int features) const {
    fetch_rows<static_cast<int>(threads)>(own(input), features, [&](int row) -> const E* {
      if (at.first + row >= a.m) return nullptr;
      return static_cast<const E*>(x.data) + at.offsets.key(x, at.first + row);
    });
  }
  __device__ __forceinline__ void fetch(int from, int stage) const {
    fetch_queries(other(stage, 0), a.q, from, a.d);
    fetch_queries(other(stage, 1), a.d_o, from, a.e);
    ptx::copy_commit();
  }
  __device__ __forceinline__ void fetch_queries(const Other& tile, const AttentionView& x, int from,
                                                int features) const {
    const auto row_at = [&](int row) {
      return static_cast<const E*>(x.data) + at.offsets.query(a, x, from + row);
    };
    const int rows = min(span, a.rows - from);
    if (a.is_in_one_head(from, rows)) {
      TileLoader<Other, static_cast<int>(threads)>(row_at(0), x.token)
          .fetch(tile, x.token, rows, features);
    } else {
      fetch_rows<static_cast<int>(threads)>(
          tile, features, [&](int row) { return row < rows ? row_at(row) : nullptr; });
    }
  }
  /// By a thread for each query of a tile.
  __device__ __forceinline__ void set_statistics(int from, int stage) const {
    const int i = static_cast<int>(threadIdx.x), row = from + i;
    float4 x = make_float4(0, 0, 0, 0);
    float most = 0.0f;
    if (row < a.rows) {
      const std::int64_t index = at.offsets.statistic(a, row);
      x = make_float4(a.lse[index], a.rest_of(index) * log2_e, a.mean[index],
                      __int_as_float(a.limit(row)));
      if (is_half) most = std::fma(results.sizes[index], at.largest_value, std::abs(x.z));
    }
    statistics[stage].rows[i] = x;
    // |D| <= |d_o v| + |mean|
    if (is_half) statistics[stage].scales[i] = is_nonfinite(most) ? 1.0f : scale_for(most);
  }
  /// By the first warp, which sets statistics.
  __device__ __forceinline__ void find_largest_value() const {
    ptx::copy_wait<0>();
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float largest = 0.0f;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Own::size; i += 32) {
      float values[8];
      Packed<float, E>::unpack(own(1).data[i], values);
#pragma unroll
      for (const float x : values)
        largest = is_nonfinite(x) ? largest : fmaxf(largest, std::abs(x));
    }
    largest = fold_warp(largest, [](float x, float y) { return fmaxf(x, y); });
    if (threadIdx.x == 0) at.largest_value = largest;
    __syncwarp();
  }

  const Attention<float>& a;
  const Results& results;
  Place& at;
  Statistics* statistics;
};

}  // namespace quipu::detail::on_cuda::attention_mma
