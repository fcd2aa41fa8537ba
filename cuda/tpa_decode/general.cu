// Tensor product attention of one token for all types, ranks, sizes and strides. Split-K decoding
// (flash decoding): a block has a batch entry, a range of the entries of its cache, up to 32 heads
// and up to 128 columns of values; usual sizes fit, so that every factor is read once. It makes the
// queries of its heads, then takes entries in tiles with a running softmax (Milakov and Gimelshein
// 2018, arXiv:1805.02867): scores from a tile of bk in shared memory, their exponentials times av,
// and accumulators over a tile of bv in registers, rescaled when the maximum grows. Bound by the
// multiply-add units.
//
// sass attend<float>: need LDG.E.128 STS.128; forbid STL LDL LD.E$ ST.E$; registers 128
//
// sass attend<double>: need LDG.E.128 STS.128 DFMA; forbid STL LDL LD.E$ ST.E$; registers 128
#include <cmath>

#include "quipu/cuda/runtime/run.h"
#include "quipu/cuda/tile/running_softmax.cuh"
#include "tpa_decode.cuh"

namespace quipu::detail::on_cuda {
namespace {

constexpr int block_heads = 32, block_columns = 128;
constexpr int score_pitch = 36;      // no bank conflicts between eight rows of four heads
constexpr int widest_queries = 256;  // wider ones are made again for each tile, part by part
template <class T>
constexpr int tile_rows = 32 * sizeof(float) / sizeof(T);

constexpr int held_queries(int d) {
  return d <= widest_queries ? d : block_columns;
}

/// Loads columns of entries, converted to T, to rows of block_columns in shared memory.
template <class T>
__device__ __forceinline__ void load_panel(T* panel, const Factor& x, std::int64_t b,
                                           std::int64_t first, int rows, int rank, int column,
                                           int columns) {
  constexpr int width = 16 / static_cast<int>(sizeof(T));
  if (x.packed && x.dtype == element_dtype<T>) {
    const int chunks = columns / width;
    for (int i = static_cast<int>(threadIdx.x); i < rows * chunks; i += block_threads) {
      const std::int64_t from = x.row(b, first + i / chunks, rank) + column;
      reinterpret_cast<uint4*>(panel)[i / chunks * (block_columns / width) + i % chunks] =
          static_cast<const uint4*>(x.data)[from / width + i % chunks];
    }
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < rows * columns; i += block_threads) {
    const std::int64_t start = x.row(b, first + i / columns, rank);
    panel[i / columns * block_columns + i % columns] =
        x.template at<T>(start, column + i % columns);
  }
}

template <class T>
class ForwardBlock {
 public:
  __device__ ForwardBlock(const TpaForward<T>& forward, int column_groups)
      : f_(forward),
        block_(forward),
        head_(static_cast<int>(blockIdx.y) / column_groups * block_heads),
        column_(static_cast<int>(blockIdx.y) % column_groups * block_columns),
        panel_(dynamic_shared<T>()),
        scores_(panel_ + rows * block_columns),
        weighted_(scores_ + rows * score_pitch),
        rescale_(weighted_ + rows * block_heads),
        queries_(rescale_ + block_heads) {
    heads_ = min(block_heads, static_cast<int>(f_.to.heads) - head_);
    columns_ = min(block_columns, static_cast<int>(f_.to.e) - column_);
  }

  __device__ void run() {
    const bool first_of_entry = blockIdx.y == 0 && block_.index == 0;
    if (first_of_entry && threadIdx.x == 0) f_.counts.check(f_.guard, block_.b);
    if (f_.d <= widest_queries && block_.begin < block_.end) make_queries(0, f_.d);
    for (first_ = block_.begin; first_ < block_.end; first_ += rows) {
      rows_ = static_cast<int>(min(static_cast<std::int64_t>(rows), block_.end - first_));
      score();
      softmax_step();
      for (int rank = 0; rank < f_.value_rank; ++rank) add_values(rank);
    }
    epilogue();
  }

  static std::size_t shared_bytes(int d) {
    return sizeof(T) * static_cast<std::size_t>(rows * (block_columns + score_pitch + block_heads) +
                                                block_heads * (held_queries(d) + 2));
  }

 private:
  static constexpr int rows = tile_rows<T>, row_steps = rows / 16;
  static constexpr int sum_heads = 4, sum_columns = block_columns / static_cast<int>(warp_size);

  /// Columns [column, column + columns) of aq bq for the heads of this block.
  __device__ void make_queries(int column, int columns) {
    for (int i = thread_; i < heads_ * columns; i += block_threads) {
      const int head = i / columns, c = i % columns;
      const std::int64_t start = f_.aq.row(block_.b, head_ + head);
      T sum(0);
      for (int k = 0; k < f_.r; ++k) {
        sum = std::fma(f_.aq.template at<T>(start, k),
                       f_.bq.template at<T>(f_.bq.row(block_.b, k), column + c), sum);
      }
      queries_[head * (held_queries(f_.d) + 1) + c] = sum;
    }
  }

  /// Scores of the tile; -infinity outside. Backward finds them again to the last bit, so that the
  /// order of sums and the fused multiply-adds are spelled out, here and there.
  __device__ void score() {
    const int x = thread_ % 16, y = thread_ / 16;
    T total[row_steps][2] = {};
    for (int rank = 0; rank < f_.key_rank; ++rank) {
      T product[row_steps][2] = {};
      for (int column = 0; column < f_.d; column += block_columns) {
        const int columns = min(block_columns, f_.d - column);
        __syncthreads();
        load_panel(panel_, f_.bk, block_.b, first_, rows_, rank, column, columns);
        if (f_.d > widest_queries) make_queries(column, columns);
        __syncthreads();
        multiply(product, x, y, f_.d > widest_queries ? 0 : column, columns);
      }
#pragma unroll
      for (int i = 0; i < row_steps; ++i) {
        if (y + 16 * i >= rows_) continue;
        const std::int64_t start = f_.ak.row(block_.b, first_ + y + 16 * i, rank);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (x + 16 * j >= heads_) continue;
          const T ak = f_.ak.template at<T>(start, head_ + x + 16 * j);
          total[i][j] = std::fma(f_.score_scale, ak * product[i][j], total[i][j]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < row_steps; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const bool inside = y + 16 * i < rows_ && x + 16 * j < heads_;
        scores_[(y + 16 * i) * score_pitch + x + 16 * j] = inside ? total[i][j] : minus_infinity<T>;
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void multiply(T (&product)[row_steps][2], int x, int y, int from,
                                           int columns) const {
    const int pitch = held_queries(f_.d) + 1;
    const T* const right[2] = {queries_ + min(x, heads_ - 1) * pitch + from,
                               queries_ + min(x + 16, heads_ - 1) * pitch + from};
    const T* left[row_steps];
#pragma unroll
    for (int i = 0; i < row_steps; ++i)
      left[i] = panel_ + min(y + 16 * i, rows_ - 1) * block_columns;
    for (int k = 0; k < columns; ++k) {
#pragma unroll
      for (int i = 0; i < row_steps; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          product[i][j] = std::fma(left[i][k], right[j][k], product[i][j]);
        }
      }
    }
  }

  /// One step of the running softmax: scores become exponentials relative to the new maximum. Eight
  /// threads have a head.
  __device__ void softmax_step() {
    const int head = thread_ / 8, part = thread_ % 8;
    T most = softmax_.largest;
    for (int i = part; i < rows; i += 8) {
      const T score = scores_[i * score_pitch + head];
      most = score > most ? score : most;
    }
    for (int lanes = 1; lanes < 8; lanes *= 2) {
      const T other = from_lane(most, lanes);
      most = other > most ? other : most;
    }
    const T rescale = softmax_.raise(most, [](T x) { return std::exp(x); });
    T sum(0);
    for (int i = part; i < rows; i += 8) {
      T& score = scores_[i * score_pitch + head];
      score = std::exp(score - softmax_.largest);
      sum += score;
    }
    for (int lanes = 1; lanes < 8; lanes *= 2) sum += from_lane(sum, lanes);
    softmax_.sum += sum;
    if (part == 0) rescale_[head] = rescale;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < sum_heads; ++i) {
      const T factor = rescale_[thread_ / warp_size + 8 * i];
#pragma unroll
      for (int j = 0; j < sum_columns; ++j) sums_[i][j] *= factor;
    }
  }

  /// Accumulates exponentials times av times bv.
  __device__ void add_values(int rank) {
    __syncthreads();
    load_panel(panel_, f_.bv, block_.b, first_, rows_, rank, column_, columns_);
    for (int i = thread_; i < rows_ * block_heads; i += block_threads) {
      const int row = i / block_heads, head = i % block_heads;
      const std::int64_t start = f_.av.row(block_.b, first_ + row, rank);
      weighted_[i] = head < heads_ ? scores_[row * score_pitch + head] *
                                         f_.av.template at<T>(start, head_ + head)
                                   : T(0);
    }
    __syncthreads();
    const int head = thread_ / static_cast<int>(warp_size);
    for (int row = 0; row < rows_; ++row) {
      T left[sum_heads], right[sum_columns];
#pragma unroll
      for (int i = 0; i < sum_heads; ++i) left[i] = weighted_[row * block_heads + head + 8 * i];
#pragma unroll
      for (int j = 0; j < sum_columns; ++j) {
        const int column = lane_ + 32 * j;
        right[j] = column < columns_ ? panel_[row * block_columns + column] : T(0);
      }
#pragma unroll
      for (int i = 0; i < sum_heads; ++i) {
#pragma unroll
        for (int j = 0; j < sum_columns; ++j) sums_[i][j] += left[i] * right[j];
      }
    }
  }

  __device__ void epilogue() {
    const int of_stats = thread_ / 8;
    __syncthreads();
    if (thread_ % 8 == 0) {
      rescale_[of_stats] = f_.to.factor(softmax_.sum);
      if (column_ == 0 && of_stats < heads_) {
        f_.to.put_sum(block_.b, head_ + of_stats, softmax_.largest, softmax_.sum);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < sum_heads; ++i) {
      const int head = thread_ / static_cast<int>(warp_size) + 8 * i;
      if (head >= heads_) continue;
#pragma unroll
      for (int j = 0; j < sum_columns; ++j) {
        const int column = lane_ + 32 * j;
        if (column >= columns_) continue;
        f_.to.put(block_.b, head_ + head, column_ + column, sums_[i][j] * rescale_[head]);
      }
    }
  }

  const TpaForward<T>& f_;
  EntryBlock block_;
  int head_, column_, heads_, columns_;
  T *panel_, *scores_, *weighted_, *rescale_, *queries_;
  std::int64_t first_ = 0;  // entry of the tile
  int rows_ = 0;            // of the tile
  T sums_[sum_heads][sum_columns] = {};
  RunningSoftmax<T> softmax_;  // of the head that this thread has in softmax_step()
  int thread_ = static_cast<int>(threadIdx.x), lane_ = thread_ % static_cast<int>(warp_size);
};

template <class T>
__global__ void __launch_bounds__(block_threads, 2) attend(TpaForward<T> f, int column_groups) {
  ForwardBlock<T>(f, column_groups).run();
}

}  // namespace

template <class T>
void tpa_forward_general(const TpaInputs& in, const ForwardTarget<T>& to, const TpaBlocks& blocks,
                         IndexGuard guard) {
  const TpaForward<T> f(in, blocks, guard, to);
  const unsigned column_groups = std::max(1u, blocks_for(to.e, block_columns));
  const dim3 grid(static_cast<unsigned>(in.aq.size(0) * blocks.count),
                  blocks_for(to.heads, block_heads) * column_groups);
  on_cuda::run(Queue(in.aq), attend<T>, grid, block_threads, ForwardBlock<T>::shared_bytes(f.d), f,
               static_cast<int>(column_groups));
}

template void tpa_forward_general(const TpaInputs&, const ForwardTarget<float>&, const TpaBlocks&,
                                  IndexGuard);
template void tpa_forward_general(const TpaInputs&, const ForwardTarget<double>&, const TpaBlocks&,
                                  IndexGuard);

}  // namespace quipu::detail::on_cuda
