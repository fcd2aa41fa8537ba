// Tensor product attention of one token by tensor cores: bf16 and f16 with sizes that are multiples
// of 8, d up to 128, rows aligned to 16 bytes. Split-K decoding (flash decoding): a block of four
// warps has a batch entry, a range of the entries of its cache, up to 32 heads and up to 128
// columns of values; with more of either there are more blocks, which read bk, bv, ak, av again.
// Entries come in tiles of 32. For each rank a panel, 32 rows of bk and ak or of bv and av, is
// copied to one of three stages of shared memory; two panels, 20 KiB, are in flight while one is
// used.
//
// Scores: a warp has 8 heads and all rows of the tile, so that the running softmax (Milakov and
// Gimelshein 2018, arXiv:1805.02867) needs no other warp. Outputs: a warp accumulates 32 columns of
// all heads in registers. f32 intermediates (queries, exponentials times av) are split into 16 bits
// and residual. Rows of shared memory have no padding; an XOR swizzle of 16-byte chunks avoids bank
// conflicts. Bound by memory: every factor is read once. 50 KiB of shared memory let three blocks
// share a multiprocessor.
//
// sass attend_mma<__nv_bfloat16>: need HMMA.16816.F32.BF16 LDSM.16.M88.4 LDSM.16.MT88.4
// LDGSTS.E.BYPASS.128 STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 168
//
// sass attend_mma<__half>: need HMMA.16816.F32 LDSM.16.M88.4 LDSM.16.MT88.4 LDGSTS.E.BYPASS.128
// STG.E.128; forbid STL LDL LD.E$ ST.E$; registers 168
//
// sass attend_mma: blocks 3@80,90 1@86,89,120; dynamic 51456
#include "mma.cuh"
#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/running_softmax.cuh"

namespace quipu::detail {
namespace on_cuda {
namespace tpa_mma {
namespace {

constexpr int stages = 3;
constexpr int result_pitch = most_columns + 8;

template <class E>
struct Shared {
  uint4 panels[stages][Panel<E>::size];
  uint4 queries[Split<Wide<E>>::size];    // (head, d)
  uint4 weights[Split<Narrow<E>>::size];  // (entry, head)
  float query_scale[most_heads];
  float rescale[most_heads];
};

template <class E>
class ForwardBlock {
 public:
  __device__ __forceinline__ ForwardBlock(const TpaForward<float>& forward, int column_groups)
      : f_(forward),
        block_(forward),
        shared_(*dynamic_shared<Shared<E>>()),
        heads_{block_.b, static_cast<int>(blockIdx.y) / column_groups * most_heads, 0},
        column_(static_cast<int>(blockIdx.y) % column_groups * most_columns),
        columns_(min(most_columns, static_cast<int>(forward.to.e) - column_)) {
    heads_.count = min(most_heads, static_cast<int>(forward.to.heads) - heads_.first);
  }

  __device__ __forceinline__ void run() {
    if (blockIdx.y == 0 && block_.index == 0 && self_.thread == 0)
      f_.counts.check(f_.guard, block_.b);
    const int tiles = static_cast<int>((block_.end - block_.begin + rows - 1) / rows);
    const int per_tile = f_.key_rank + f_.value_rank, panels = tiles * per_tile;
    for (int p = 0; p < stages - 1; ++p) fetch(p, p < panels, per_tile);
    if (panels > 0) make_queries();
    for (int p = 0; p < panels; ++p) {
      const int tile = p / per_tile, rank = p % per_tile;
      ptx::copy_wait<stages - 2>();
      __syncthreads();
      fetch(p + stages - 1, p + stages - 1 < panels, per_tile);
      const Panel<E> panel(shared_.panels[p % stages]);
      if (rank < f_.key_rank) {
        if (rank == 0) clear_scores();
        if (8 * self_.warp < heads_.count) score(panel);
        if (rank == f_.key_rank - 1) softmax_step(tile);
      } else {
        store_weights(panel);
        __syncthreads();
        if (rank == f_.key_rank) rescale_accumulators();
        if (32 * self_.warp < columns_) add_values(panel);
      }
    }
    epilogue();
  }

 private:
  static constexpr bool is_half = std::is_same_v<E, __half>;
  // The residual of an f16 may underflow: it is scaled up, and its products have accumulators of
  // their own.
  static constexpr float low_scale = is_half ? 2048.0f : 1.0f;
  static constexpr int sum_parts = is_half ? 2 : 1;

  /// Starts the copies of a panel: rows of bk or bv, 16 chunks each, and of ak or av, 4 chunks
  /// each. Elements outside are 0.
  __device__ __forceinline__ void fetch(int p, bool exists, int per_tile) {
    if (exists) {
      const int tile = p / per_tile, rank = p % per_tile;
      const bool is_key = rank < f_.key_rank;
      const std::int64_t first = block_.begin + tile * rows;
      const int inside = static_cast<int>(min(static_cast<std::int64_t>(rows), block_.end - first));
      const Panel<E> panel(shared_.panels[p % stages]);
      if (is_key) {
        panel.fetch(f_.bk, f_.ak, heads_, first, rank, inside, 0, f_.d);
      } else {
        panel.fetch(f_.bv, f_.av, heads_, first, rank - f_.key_rank, inside, column_, columns_);
      }
    }
    ptx::copy_commit();
  }

  __device__ __forceinline__ void make_queries() {
    Queries<E>{f_.aq,
               f_.bq,
               heads_,
               f_.r,
               f_.d,
               {shared_.queries},
               reinterpret_cast<float*>(shared_.weights),
               shared_.query_scale,
               shared_.rescale}
        .make(self_);
  }

  __device__ __forceinline__ void clear_scores() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v) scores_[i][v] = 0.0f;
    }
  }

  /// Adds scale ak (bk q) for the tile and the warp's 8 heads.
  __device__ __forceinline__ void score(const Panel<E>& panel) {
    float products[2][4] = {};
    multiply_heads<E>(products, panel.b, Split<Wide<E>>{shared_.queries}, self_, f_.d);
    const auto query_scale =
        reinterpret_cast<const float2*>(shared_.query_scale)[4 * self_.warp + self_.member];
    const float2 scale =
        make_float2(f_.score_scale * query_scale.x, f_.score_scale * query_scale.y);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 ak = panel.factor(self_, i, half);
        scores_[i][2 * half] += scale.x * (ak.x * products[i][2 * half]);
        scores_[i][2 * half + 1] += scale.y * (ak.y * products[i][2 * half + 1]);
      }
    }
  }

  /// One step of the running softmax: scores become exponentials relative to the new maximum.
  __device__ __forceinline__ void softmax_step(int tile) {
    const std::int64_t left = block_.end - block_.begin - std::int64_t{tile} * rows;
    float rescale[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      float most = softmax_[v].largest;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores_[i / 2][2 * (i % 2) + v];
        if (8 * i + self_.group >= left) score = minus_infinity<float>;
        most = fmaxf(most, score);
      }
      most = fold_fragment_column(most, [](float x, float y) { return fmaxf(x, y); });
      rescale[v] = softmax_[v].raise(most, [](float x) { return std::exp(x); });
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores_[i / 2][2 * (i % 2) + v];
        score = std::exp(score - softmax_[v].largest);
        softmax_[v].sum += score;
      }
    }
    if (self_.group == 0) {
      reinterpret_cast<float2*>(shared_.rescale)[4 * self_.warp + self_.member] =
          make_float2(rescale[0], rescale[1]);
    }
  }

  /// Stores exponentials times av to shared memory, for all warps.
  __device__ __forceinline__ void store_weights(const Panel<E>& panel) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 av = panel.factor(self_, i, half);
        store_split<E>(
            {shared_.weights}, self_, i, half,
            SplitPair<E>(scores_[i][2 * half] * av.x, scores_[i][2 * half + 1] * av.y, low_scale));
      }
    }
  }

  __device__ __forceinline__ void rescale_accumulators() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = shared_.rescale[8 * i + self_.group];
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

  /// Accumulates weights^T bv for the warp's 32 columns.
  __device__ __forceinline__ void add_values(const Panel<E>& panel) {
    const Split<Narrow<E>> weights{shared_.weights};
#pragma unroll
    for (int k = 0; k < rows; k += 16) {
      unsigned weight[2][2][4];  // half, 16 heads
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          weights.load_a_transposed(weight[half][i], half * rows + k, 16 * i);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (32 * self_.warp + 16 * n >= columns_) continue;
        unsigned value[4];
        panel.b.load_b(value, k, 32 * self_.warp + 16 * n);
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

  /// Divides the accumulators by the sums of exponentials and stores them through shared memory.
  __device__ __forceinline__ void epilogue() {
#pragma unroll
    for (RunningSoftmax<float>& head : softmax_) {
      head.sum = fold_fragment_column(head.sum, [](float x, float y) { return x + y; });
    }
    ptx::copy_wait<0>();
    __syncthreads();
    if (self_.group == 0) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int head = 8 * self_.warp + 2 * self_.member + v;
        shared_.rescale[head] = f_.to.factor(softmax_[v].sum);
        if (column_ == 0 && head < heads_.count)
          f_.to.put_sum(block_.b, heads_.first + head, softmax_[v].largest, softmax_[v].sum);
      }
    }
    __syncthreads();
    auto* const result = reinterpret_cast<float*>(shared_.panels);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * i + self_.group;
      const float factor = shared_.rescale[head];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int v = 2 * (i % 2);
        float2 sum = make_float2(sums_[0][i / 2][n][v], sums_[0][i / 2][n][v + 1]);
        if constexpr (is_half) {
          sum.x += sums_[1][i / 2][n][v] / low_scale;
          sum.y += sums_[1][i / 2][n][v + 1] / low_scale;
        }
        const int word = head * result_pitch + 32 * self_.warp + 8 * n + 2 * self_.member;
        reinterpret_cast<float2*>(result)[word / 2] = make_float2(sum.x * factor, sum.y * factor);
      }
    }
    __syncthreads();
    store_output(result);
  }
  __device__ __forceinline__ void store_output(const float* result) const {
    if (f_.to.outputs == nullptr) {
      for (int i = self_.thread; i < heads_.count * columns_; i += threads) {
        const int head = i / columns_, column = i % columns_;
        f_.to.put_output(block_.b, heads_.first + head, column_ + column,
                         result[head * result_pitch + column]);
      }
      return;
    }
    const int chunks = columns_ / 4;
    for (int i = self_.thread; i < heads_.count * chunks; i += threads) {
      const int head = i / chunks, chunk = i % chunks;
      const std::int64_t to = (blockIdx.x * f_.to.heads + heads_.first + head) * f_.to.e + column_;
      reinterpret_cast<float4*>(f_.to.outputs)[to / 4 + chunk] =
          reinterpret_cast<const float4*>(result)[head * (result_pitch / 4) + chunk];
    }
  }

  const TpaForward<float>& f_;
  EntryBlock block_;
  Shared<E>& shared_;
  Heads heads_;
  int column_, columns_;
  Thread self_;
  float scores_[2][4];                   // rows group and group + 8 of 16, two heads
  RunningSoftmax<float> softmax_[2];     // its sum is this lane's part
  float sums_[sum_parts][2][4][4] = {};  // 16 heads, 8 columns
};

template <class E>
__global__ void __launch_bounds__(threads, 3) attend_mma(TpaForward<float> f, int column_groups) {
  ForwardBlock<E>(f, column_groups).run();
}

}  // namespace
}  // namespace tpa_mma

bool try_tpa_forward_mma(const TpaInputs& in, const View& o, const LogSums& sums,
                         const View& partial, const TpaBlocks& blocks, IndexGuard guard) {
  if (!tpa_mma::supports_mma(in)) return false;
  const ForwardTarget<float> to(o, sums, partial, blocks, in.value_scale);
  const unsigned column_groups = blocks_for(to.e, tpa_mma::most_columns);
  const dim3 grid(static_cast<unsigned>(in.aq.size(0) * blocks.count),
                  blocks_for(to.heads, tpa_mma::most_heads) * column_groups);
  const auto run_with = [&]<class E>(E) {
    run(Queue(in.aq), tpa_mma::attend_mma<E>, grid, tpa_mma::threads, sizeof(tpa_mma::Shared<E>),
        TpaForward<float>(in, blocks, guard, to), static_cast<int>(column_groups));
  };
  in.aq.dtype == bf16 ? run_with(__nv_bfloat16()) : run_with(__half());
  return true;
}

}  // namespace on_cuda
}  // namespace quipu::detail
