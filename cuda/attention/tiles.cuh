#pragma once
// Softmax attention by ordinary multiply-adds, after FlashAttention-2 (Dao 2023,
// arXiv:2307.08691). A block of 256 threads makes 64 rows of a result, and of its columns as many
// as fit into registers (64 or 128; for wider results several blocks recompute the same weights).
// Its own side, queries or keys, stays, while the other passes by in tiles of 64:
//   scores = own other^T, in steps of some features, 4 x 4 a thread;
//   weights or gradients of scores overwrite the tile in shared memory; the half warp that made a
//   row also reads it;
//   result += weights values, 4 x 4 or 4 x 8 a thread.
// Forward keeps a running softmax and rescales its accumulators when the maximum grows. Each block
// reads the other side once, mostly from L2. Bound by multiply-adds: every vector from shared
// memory feeds 8 of them. Each sum has one owner and one order.
#include "products.cuh"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {

namespace attention_tiles {

/// Blocks that share a multiprocessor, as far as registers are concerned.
template <class T, int vectors, AttentionPass pass>
inline constexpr int blocks_at_once = sizeof(T) == 4 && (vectors == 1 || !goes_through_scores(pass))
                                          ? 2
                                          : 1;

/// The work of a block; members are what each thread holds.
template <class T, int vectors, AttentionPass pass>
class TileBlock {
 public:
  __device__ __forceinline__ TileBlock(const Attention<T>& call, int tiles, int chunks) : a_(call) {
    const unsigned block = blockIdx.x / static_cast<unsigned>(chunks);
    const int head = static_cast<int>(block / static_cast<unsigned>(tiles));
    const int tile = static_cast<int>(block % static_cast<unsigned>(tiles));
    chunk_ = static_cast<int>(blockIdx.x % static_cast<unsigned>(chunks));
    offsets_ = {head / a_.key_heads, head % a_.key_heads};
    // With a causal mask the last queries have most to do, and begin first.
    first_ = (of_queries ? tiles - 1 - tile : tile) * side;
  }

  __device__ __forceinline__ void run() {
    const int other_end = of_queries ? a_.most_keys(first_, first_ + side) : a_.rows;
    for (int from = 0; from < other_end; from += side) {
      if (!of_queries && a_.most_keys(from, from + side) <= first_) continue;  // the whole block
      accumulate(from, min(side, other_end - from));
    }
    epilogue();
  }

 private:
  using S = Sizes<T, vectors>;
  static constexpr bool of_queries = is_of_queries(pass),
                        through_scores = goes_through_scores(pass);
  static constexpr T nothing = -std::numeric_limits<T>::infinity();

  // Tiles in shared memory and sizes: recomputed rather than kept in registers.
  __device__ __forceinline__ T* own() const { return dynamic_shared<T>(); }
  __device__ __forceinline__ T* own_second() const { return own() + S::own; }
  __device__ __forceinline__ T* other() const { return own() + (through_scores ? 2 : 1) * S::own; }
  __device__ __forceinline__ T* values() const { return other() + S::other; }
  __device__ __forceinline__ int own_end() const { return of_queries ? a_.rows : a_.m; }
  __device__ __forceinline__ int features() const { return through_scores ? a_.d : a_.e; }

  /// Loads the statistics of a query, one of this thread's rows or columns.
  __device__ __forceinline__ void load_statistics(int i, int row) {
    const bool inside = row < a_.rows;
    limits_[i] = inside ? a_.limit(row) : 0;
    if constexpr (pass != AttentionPass::forward) {
      lse_[i] = inside ? a_.lse[offsets_.statistic(a_, row)] : T(0);
      rest_[i] = inside ? a_.rest_of(offsets_.statistic(a_, row)) : T(0);
    }
    if constexpr (through_scores) mean_[i] = inside ? a_.mean[offsets_.statistic(a_, row)] : T(0);
  }

  /// Accumulates a tile of the other side.
  __device__ __forceinline__ void accumulate(int from, int count) {
    Scores<T> s = {}, d_s = {};
    if constexpr (pass == AttentionPass::forward) {
      load_values(a_.v, from, count);
      add_product(s, own(), a_.q, a_.k, a_.d, from, count);
    } else if constexpr (pass == AttentionPass::d_q) {
      load_values(a_.k, from, count);
      add_product(d_s, own_second(), a_.d_o, a_.v, a_.e, from, count);
      add_product(s, own(), a_.q, a_.k, a_.d, from, count);
    } else if constexpr (pass == AttentionPass::d_k) {
      load_values(a_.q, from, count);
      add_product(d_s, own_second(), a_.v, a_.d_o, a_.e, from, count);
      add_product(s, own(), a_.k, a_.q, a_.d, from, count);
    } else {
      load_values(a_.d_o, from, count);
      add_product(s, own(), a_.k, a_.q, a_.d, from, count);
    }
    is_first_ = false;
#pragma unroll
    for (int i = 0; i < strip; ++i) {  // for each tile again, to save registers
      load_statistics(i, (of_queries ? first_ + thread_.y : from + thread_.x) + i * team);
    }
    __syncthreads();  // weights overwrite the other side, and values have arrived
    softmax_step(s, d_s, from);
    __syncwarp();
    add_values<T, vectors>(result_, other(), values(), count, columns());
  }

  /// Columns of the values that are read.
  __device__ __forceinline__ int columns() const {
    return vectors == 1 ? features() - chunk_ * S::columns : S::columns;
  }
  /// With a causal mask, infinity and NaN become 0: their products with masked weights of 0 would
  /// be NaN. Nothing is lost: rows that attend to nonfinite keys or queries have nonfinite weights,
  /// and nonfinite values and d_o are added in the end.
  __device__ __forceinline__ void load_values(const AttentionView& source, int from, int count) {
    __syncthreads();
    has_nonfinite_ |= load_tile<!of_queries, S::columns>(
        values(), S::columns, a_, offsets_, source,
        {from, from + count, chunk_ * S::columns, features(), columns()}, a_.causal);
  }

  __device__ __forceinline__ void add_product(Scores<T>& s, T* kept, const AttentionView& mine,
                                              const AttentionView& theirs, int depth, int from,
                                              int count) {
#pragma unroll 1
    for (int c = 0; c < depth; c += S::depth) {
      __syncthreads();
      if (is_first_ || depth > S::depth) {
        load_tile<of_queries, S::depth>(kept, S::depth_pitch, a_, offsets_, mine,
                                        {first_, own_end(), c, depth, depth - c});
      }
      load_tile<!of_queries, S::depth>(other(), S::depth_pitch, a_, offsets_, theirs,
                                       {from, from + count, c, depth, depth - c});
      __syncthreads();
      add_features(s, kept, other(), min(S::depth, depth - c));
    }
  }

  /// Scores become weights, or gradients of scores, in shared memory.
  __device__ __forceinline__ void softmax_step(Scores<T>& s, const Scores<T>& d_s, int from) {
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      const bool is_there = first_ + i * team < own_end();  // any of the block's rows in this strip
#pragma unroll
      for (int j = 0; j < strip; ++j) {
        const int key = of_queries ? from + thread_.x + j * team : first_ + thread_.y + i * team;
        const int row = of_queries ? i : j;
        const bool attends = key < limits_[row];
        if constexpr (pass == AttentionPass::forward) {
          s[i][j] = !is_there ? T(0) : attends ? s[i][j] * a_.scale : nothing;
        } else {
          s[i][j] =
              attends ? std::exp((scaled_score(s[i][j], a_.scale) - lse_[row]) - rest_[row]) : T(0);
        }
        if constexpr (through_scores) {
          s[i][j] = attends ? s[i][j] * (d_s[i][j] - mean_[row]) : T(0);
        }
      }
      if (pass == AttentionPass::forward && is_there) {
        const T rescale = attention_tiles::softmax_step(softmax_[i], s[i]);
#pragma unroll
        for (int c = 0; c < S::lanes * vectors; ++c) result_[i][c] *= rescale;
      }
#pragma unroll
      for (int j = 0; j < strip; ++j) {
        other()[(thread_.y + i * team) * S::weight_pitch + thread_.x + j * team] = s[i][j];
      }
    }
  }

  __device__ __forceinline__ void epilogue() {
    __syncthreads();  // the result overwrites the values
#pragma unroll
    for (int i = 0; i < strip; ++i) {
      const int row = first_ + thread_.y + i * team;
      T sum(1);
      if constexpr (pass == AttentionPass::forward) {
        load_statistics(i, row);
        sum = fold_row(softmax_[i].sum, [](T x, T y) { return x + y; });
        if (row < own_end() && a_.lse != nullptr && chunk_ == 0 && thread_.x == 0) {
          a_.put_sum(offsets_.statistic(a_, row),
                     log_sum_of(limits_[i] > 0 ? softmax_[i].largest : nothing, std::log(sum)));
        }
      }
#pragma unroll
      for (int u = 0; u < vectors; ++u) {
        Vector<T> numbers;
#pragma unroll
        for (int l = 0; l < S::lanes; ++l) {
          T number = result_[i][u * S::lanes + l];
          if constexpr (pass == AttentionPass::forward) {
            number = limits_[i] > 0 ? number / sum : T(0);
          }
          numbers.values[l] = through_scores ? number * a_.scale : number;
        }
        put_vector(values(),
                   (thread_.y + i * team) * S::columns + (u * team + thread_.x) * S::lanes,
                   numbers);
      }
    }
    if (__syncthreads_or(has_nonfinite_) != 0 && !through_scores) add_nonfinite();
    put_tile<of_queries, S::columns>(
        values(), a_, offsets_,
        {first_, own_end(), chunk_ * S::columns, features(), features() - chunk_ * S::columns});
  }

  /// Adds the nonfinite numbers that load_values zeroed to the results in shared memory. Weights
  /// are positive, so that infinity or NaN stands for its product with one.
  __device__ __forceinline__ void add_nonfinite() const {
    const AttentionView& source = of_queries ? a_.v : a_.d_o;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < side * S::columns; i += block_threads) {
      const int row = first_ + i / S::columns, column = chunk_ * S::columns + i % S::columns;
      if (row >= own_end() || column >= features()) continue;
      T sum(0);
#pragma unroll 1
      for (int k = 0; k < (of_queries ? a_.limit(row) : a_.rows); ++k) {
        if (!of_queries && row >= a_.limit(k)) continue;
        const std::int64_t at = offsets_.template start<!of_queries>(a_, source, k);
        const T value = StridedAccess<T>::load(source, at + column * source.step, 1).values[0];
        if (is_nonfinite(value)) sum += value;
      }
      if (is_nonfinite(sum)) values()[i] = sum;
    }
    __syncthreads();
  }

  const Attention<T>& a_;
  int chunk_, first_;
  HeadOffsets offsets_;
  ThreadTile thread_;
  bool is_first_ = true, has_nonfinite_ = false;
  T result_[strip][S::lanes * vectors] = {};
  RunningSoftmax<T> softmax_[strip];
  int limits_[strip];
  T lse_[strip], rest_[strip], mean_[strip];
};

template <class T, int vectors, AttentionPass pass>
__global__ void __launch_bounds__(block_threads, blocks_at_once<T, vectors, pass>)
    attend_tiles(Attention<T> a, int tiles, int chunks) {
  TileBlock<T, vectors, pass>(a, tiles, chunks).run();
}

template <class T, int vectors, AttentionPass pass>
void run_tiles(const View& on, const Attention<T>& a, std::int64_t heads) {
  using S = Sizes<T, vectors>;
  const int own = is_of_queries(pass) ? a.rows : a.m;
  const int features = goes_through_scores(pass) ? a.d : a.e;
  const int tiles = (own + side - 1) / side;
  const int chunks = std::max(1, (features + S::columns - 1) / S::columns);
  const std::int64_t blocks = heads * tiles * chunks;
  if (blocks == 0) return;
  check(blocks < std::int64_t{1} << 31, "attention of ", heads, " heads of ", own,
        " rows is beyond what a device takes at once");
  run(Queue(on), attend_tiles<T, vectors, pass>, static_cast<unsigned>(blocks), block_threads,
      S::bytes(goes_through_scores(pass)), a, tiles, chunks);
}

template <class T, int vectors>
void run_pass(const View& on, const Attention<T>& a, std::int64_t heads, AttentionPass pass) {
  switch (pass) {
    case AttentionPass::forward: return run_tiles<T, vectors, AttentionPass::forward>(on, a, heads);
    case AttentionPass::d_q: return run_tiles<T, vectors, AttentionPass::d_q>(on, a, heads);
    case AttentionPass::d_k: return run_tiles<T, vectors, AttentionPass::d_k>(on, a, heads);
    case AttentionPass::d_v: return run_tiles<T, vectors, AttentionPass::d_v>(on, a, heads);
  }
}

}  // namespace attention_tiles

}  // namespace quipu::detail::on_cuda
