// Backward of tensor product attention for all types, ranks, sizes and strides. A block has a batch
// entry and a range of the entries of its cache, which it takes in tiles with all heads: scores are
// recomputed, to the last bit as in forward (general.cu: queries, then their products with bk),
// e^(score - log-sum-exp) are the weights, and a tile stays in shared memory until its gradients
// are stored (=|+=). Gradients of aq and bq are sums over all entries, split-K: a block
// has partial sums in shared memory (in the workspace where they are large), and a second kernel
// adds them in order. Rows of bk and bv are read once if they are at most 128 wide, those of ak and
// av twice, the second time from a cache. Bound by the multiply-add units.
//
// sass differentiate: forbid STL LDL LD.E$ ST.E$; registers 128
#include <cmath>

#include "general_backward.cuh"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail::on_cuda {
namespace tpa_backward {
namespace {

template <class T>
class BackwardBlock {
 public:
  __device__ __forceinline__ BackwardBlock(const Backward<T>& backward)
      : g_(backward),
        plan_(backward.plan),
        block_(backward),
        aq_{backward.aq, block_.b},
        bq_{backward.bq, block_.b},
        d_o_{backward.d_o, block_.b} {
    T* next = dynamic_shared<T>();
    const auto take = [&](int count) {
      T* const to = next;
      next += count;
      return to;
    };
    const auto tile = [&](int columns) {
      return Rows<T>{take(plan_.rows * Plan::odd(columns)), Plan::odd(columns)};
    };
    weights_ = tile(plan_.heads);
    products_ = tile(plan_.heads);
    d_weights_ = tile(plan_.heads);
    factors_ = tile(plan_.heads);
    inner_ = tile(plan_.r);
    d_inner_ = tile(plan_.r);
    keys_ = tile(plan_.key_columns);
    values_ = tile(plan_.value_columns);
    lse_ = take(plan_.heads);
    rest_ = take(plan_.heads);
    mean_ = take(plan_.heads);
    queries_ = {take(plan_.heads * Plan::odd(plan_.query_columns)), Plan::odd(plan_.query_columns)};
    if (plan_.holds_factors) {
      aq_.hold(take(plan_.heads * Plan::odd(plan_.r)), plan_.heads, plan_.r);
      bq_.hold(take(plan_.r * Plan::odd(plan_.d)), plan_.r, plan_.d);
    }
    if (plan_.holds_d_o) {
      d_o_.hold(take(plan_.heads * Plan::odd(plan_.e)), plan_.heads, plan_.e);
    }
    if (plan_.holds_sums) sums_ = take(plan_.r * (plan_.heads + plan_.d));
    part_ = g_.parts + blockIdx.x * part_size();
  }

  __device__ __forceinline__ void run() {
    for (int h = thread_; h < plan_.heads; h += block_threads) {
      const std::int64_t from = block_.b * g_.lse_step[0] + h * g_.lse_step[1];
      lse_[h] = g_.lse[from];
      rest_[h] = g_.rest[from];
    }
    if (g_.parts != nullptr) {
      for (std::int64_t i = thread_; i < part_size(); i += block_threads) put_part(i, T(0));
    }
    __syncthreads();
    if (g_.of_scores) find_means();
    if (plan_.query_columns == plan_.d) make_queries(0, plan_.d);
    for (first_ = block_.begin; first_ < block_.end; first_ += rows_) {
      rows_ = static_cast<int>(min(static_cast<std::int64_t>(plan_.rows), block_.end - first_));
      keys_held_ = -1;
      find_weights();
      for (int rank = 0; rank < plan_.value_rank; ++rank) value_gradients(rank);
      if (g_.of_scores) key_gradients();
    }
    clear(g_.d_ak, plan_.key_rank, plan_.heads);
    clear(g_.d_bk, plan_.key_rank, plan_.d);
    clear(g_.d_av, plan_.value_rank, plan_.heads);
    clear(g_.d_bv, plan_.value_rank, plan_.e);
    if (g_.parts == nullptr || !plan_.holds_sums) return;
    __syncthreads();
    for (std::int64_t i = thread_; i < part_size(); i += block_threads) part_[i] = sums_[i];
  }

 private:
  __device__ __forceinline__ std::int64_t part_size() const {
    return std::int64_t{plan_.r} * (plan_.heads + plan_.d);
  }
  __device__ __forceinline__ void put_part(std::int64_t i, T value) {
    if (plan_.holds_sums) {
      sums_[i] = value;
    } else {
      part_[i] = value;
    }
  }
  __device__ __forceinline__ void add_part(std::int64_t i, T value) {
    if (plan_.holds_sums) {
      sums_[i] += value;
    } else {
      part_[i] += value;
    }
  }

  /// The row sums of weights times their gradients, which are the row sums of o * d_o.
  __device__ __forceinline__ void find_means() {
    constexpr int warps = block_threads / warp_size;
    const int lane = thread_ % static_cast<int>(warp_size);
    for (int h = thread_ / static_cast<int>(warp_size); h < plan_.heads; h += warps) {
      const std::int64_t start = g_.o.row(block_.b, h);
      T sum(0);
      for (int j = lane; j < plan_.e; j += static_cast<int>(warp_size)) {
        sum += g_.o.template at<T>(start, j) * d_o_(h, j);
      }
      sum = fold_warp(sum, [](T x, T y) { return x + y; });
      if (lane == 0) mean_[h] = sum;
    }
  }

  /// Loads columns of the tile's rows of bk or bv, between barriers.
  __device__ __forceinline__ void load(const Rows<T>& to, const Factor& x, int rank, int column,
                                       int columns) const {
    __syncthreads();
    for (int i = thread_; i < rows_ * columns; i += block_threads) {
      const std::int64_t start = x.row(block_.b, first_ + i / columns, rank);
      to(i / columns, i % columns) = x.template at<T>(start, column + i % columns);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void load_keys(int rank, int column, int columns) {
    const std::int64_t wanted = std::int64_t{rank} * plan_.d + column;
    if (keys_held_ == wanted) return;
    load(keys_, g_.bk, rank, column, columns);
    keys_held_ = wanted;
  }

  /// Columns of aq bq, rounded as in forward.
  __device__ __forceinline__ void make_queries(int column, int columns) {
    __syncthreads();
    for (int i = thread_; i < plan_.heads * columns; i += block_threads) {
      const int h = i / columns, c = i % columns;
      T sum(0);
      for (int k = 0; k < plan_.r; ++k) sum = std::fma(aq_(h, k), bq_(k, column + c), sum);
      queries_(h, c) = sum;
    }
    __syncthreads();
  }

  /// products = bk (aq bq)^T, rounded as in forward.
  __device__ __forceinline__ void multiply_keys(int rank) {
    __syncthreads();
    for (int i = thread_; i < rows_ * plan_.heads; i += block_threads) {
      products_(i / plan_.heads, i % plan_.heads) = T(0);
    }
    const bool has_all = plan_.query_columns == plan_.d;
    const int step = has_all ? panel_columns : plan_.query_columns;
    for (int panel = 0; panel < plan_.d; panel += panel_columns) {
      const int panel_end = min(panel + panel_columns, plan_.d);
      load_keys(rank, panel, panel_end - panel);
      for (int column = panel; column < panel_end; column += step) {
        const int columns = min(step, panel_end - column), from = has_all ? column : 0;
        has_all ? __syncthreads() : make_queries(column, columns);
        multiply_from<T>(
            products_, rows_, plan_.heads, columns,
            [&](int i, int k) { return keys_(i, column - panel + k); },
            [&](int k, int j) { return queries_(j, from + k); },
            [&](int i, int j, T sum) { products_(i, j) = sum; });
      }
    }
    __syncthreads();
  }

  /// inner = bk bq^T, for the gradient of aq.
  __device__ __forceinline__ void multiply_bq(int rank) {
    __syncthreads();
    for (int i = thread_; i < rows_ * plan_.r; i += block_threads) {
      inner_(i / plan_.r, i % plan_.r) = T(0);
    }
    for (int column = 0; column < plan_.d; column += panel_columns) {
      const int columns = min(panel_columns, plan_.d - column);
      load_keys(rank, column, columns);
      __syncthreads();
      multiply<T>(
          rows_, plan_.r, columns, keys_, [&](int k, int j) { return bq_(j, column + k); },
          [&](int i, int j, T sum) { inner_(i, j) += sum; });
    }
    __syncthreads();
  }

  /// Calls f(i, h, a) for every row i and head h of the tile; a is the element of ak or av.
  template <class F>
  __device__ __forceinline__ void for_each_factor(const Factor& a, int rank, F f) const {
    for (int p = thread_; p < rows_ * plan_.heads; p += block_threads) {
      const int i = p / plan_.heads, h = p % plan_.heads;
      const std::int64_t start = a.row(block_.b, first_ + i, rank);
      f(i, h, a.data != nullptr ? a.template at<T>(start, h) : T(0));
    }
  }

  __device__ __forceinline__ void find_weights() {
    __syncthreads();
    for (int p = thread_; p < rows_ * plan_.heads; p += block_threads) {
      weights_(p / plan_.heads, p % plan_.heads) = T(0);
      d_weights_(p / plan_.heads, p % plan_.heads) = T(0);
    }
    for (int rank = 0; rank < plan_.key_rank; ++rank) {
      multiply_keys(rank);
      for_each_factor(g_.ak, rank, [&](int i, int h, T ak) {
        weights_(i, h) = std::fma(g_.score_scale, ak * products_(i, h), weights_(i, h));
      });
    }
    __syncthreads();
    for (int p = thread_; p < rows_ * plan_.heads; p += block_threads) {
      const int i = p / plan_.heads, h = p % plan_.heads;
      weights_(i, h) = std::exp((weights_(i, h) - lse_[h]) - rest_[h]);
    }
  }

  /// Gradients of av and bv, and of the weights.
  __device__ __forceinline__ void value_gradients(int rank) {
    __syncthreads();
    for (int p = thread_; p < rows_ * plan_.heads; p += block_threads) {
      factors_(p / plan_.heads, p % plan_.heads) = T(0);
    }
    for (int column = 0; column < plan_.e && g_.bv.data != nullptr; column += panel_columns) {
      const int columns = min(panel_columns, plan_.e - column);
      load(values_, g_.bv, rank, column, columns);
      multiply<T>(
          rows_, plan_.heads, columns, values_, [&](int k, int j) { return d_o_(j, column + k); },
          [&](int i, int j, T sum) { factors_(i, j) += sum; });
    }
    __syncthreads();
    for_each_factor(g_.av, rank, [&](int i, int h, T av) {
      const T factor = factors_(i, h), weight = weights_(i, h);
      d_weights_(i, h) += g_.value_scale * (av * factor);
      if (g_.d_av.wanted()) {
        const std::int64_t start = g_.d_av.row(block_.b, first_ + i, rank);
        g_.d_av.put(start, h, g_.value_scale * (weight * factor));
      }
      factors_(i, h) = g_.value_scale * (weight * av);
    });
    __syncthreads();
    if (!g_.d_bv.wanted()) return;
    multiply<T>(rows_, plan_.e, plan_.heads, factors_, d_o_, [&](int i, int j, T sum) {
      g_.d_bv.put(g_.d_bv.row(block_.b, first_ + i, rank), j, sum);
    });
  }

  /// Gradients of ak and bk, and the tile's terms of those of aq and bq.
  __device__ __forceinline__ void key_gradients() {
    __syncthreads();
    for (int p = thread_; p < rows_ * plan_.heads; p += block_threads) {
      const int i = p / plan_.heads, h = p % plan_.heads;
      weights_(i, h) *= d_weights_(i, h) - mean_[h];
    }
    for (int rank = 0; rank < plan_.key_rank; ++rank) {
      if (plan_.key_rank > 1) multiply_keys(rank);
      __syncthreads();
      for_each_factor(g_.ak, rank, [&](int i, int h, T ak) {
        const T weight = weights_(i, h);
        factors_(i, h) = g_.score_scale * (weight * ak);
        if (!g_.d_ak.wanted()) return;
        const std::int64_t start = g_.d_ak.row(block_.b, first_ + i, rank);
        g_.d_ak.put(start, h, g_.score_scale * (weight * products_(i, h)));
      });
      __syncthreads();
      if (g_.of_aq) {
        multiply_bq(rank);
        multiply<T>(
            plan_.heads, plan_.r, rows_, [&](int h, int k) { return factors_(k, h); }, inner_,
            [&](int h, int j, T sum) { add_part(std::int64_t{h} * plan_.r + j, sum); });
      }
      if (!g_.of_bq && !g_.d_bk.wanted()) continue;
      multiply<T>(rows_, plan_.r, plan_.heads, factors_, aq_,
                  [&](int i, int j, T sum) { d_inner_(i, j) = sum; });
      __syncthreads();
      for (int column = 0; column < plan_.d && g_.of_bq; column += panel_columns) {
        const int columns = min(panel_columns, plan_.d - column);
        load_keys(rank, column, columns);
        const std::int64_t start = std::int64_t{plan_.heads} * plan_.r + column;
        multiply<T>(
            plan_.r, columns, rows_, [&](int i, int k) { return d_inner_(k, i); }, keys_,
            [&](int i, int j, T sum) { add_part(start + std::int64_t{i} * plan_.d + j, sum); });
      }
      if (!g_.d_bk.wanted()) continue;
      multiply<T>(rows_, plan_.d, plan_.r, d_inner_, bq_, [&](int i, int j, T sum) {
        g_.d_bk.put(g_.d_bk.row(block_.b, first_ + i, rank), j, sum);
      });
    }
  }

  /// Entries behind the length of the cache have gradient 0.
  __device__ __forceinline__ void clear(const FactorGrad& g, int ranks, int columns) const {
    if (!g.wanted() || g.add || columns == 0) return;
    for (std::int64_t m = block_.end; m < block_.last; ++m) {
      for (int i = thread_; i < ranks * columns; i += block_threads) {
        g.put(g.row(block_.b, m, i / columns), i % columns, T(0));
      }
    }
  }

  const Backward<T>& g_;
  const Plan& plan_;
  EntryBlock block_;
  Operand<T> aq_, bq_, d_o_;
  Rows<T> weights_, products_, d_weights_, factors_;  // (rows, heads)
  Rows<T> inner_, d_inner_;                           // (rows, r)
  Rows<T> queries_;                                   // (heads, query_columns)
  Rows<T> keys_, values_;                             // some columns of bk and bv
  T *lse_, *rest_, *mean_, *sums_ = nullptr, *part_;
  std::int64_t first_ = 0, keys_held_ = -1;  // rank and column that lie in keys_
  int rows_ = 0;
  int thread_ = static_cast<int>(threadIdx.x);
};

template <class T>
__global__ void __launch_bounds__(block_threads, 2) differentiate(Backward<T> backward) {
  BackwardBlock<T>(backward).run();
}

}  // namespace
}  // namespace tpa_backward

template <class T>
void tpa_backward_general(const TpaInputs& in, const View& o, const LogSums& sums, const View& d_o,
                          const TpaInputGrads& d, const View& partial, const TpaBlocks& blocks) {
  using namespace tpa_backward;
  const Plan plan(in, d_o, sizeof(T));
  const Backward<T> backward{
      {in, o, sums, d_o, d, partial, blocks}, plan, d.of_scores(), d.aq.wanted(), d.bq.wanted()};
  on_cuda::run(Queue(d_o), differentiate<T>, static_cast<unsigned>(d_o.size(0) * blocks.count),
               block_threads, sizeof(T) * plan.elements(), backward);
}

template void tpa_backward_general<float>(const TpaInputs&, const View&, const LogSums&,
                                          const View&, const TpaInputGrads&, const View&,
                                          const TpaBlocks&);
template void tpa_backward_general<double>(const TpaInputs&, const View&, const LogSums&,
                                           const View&, const TpaInputGrads&, const View&,
                                           const TpaBlocks&);

}  // namespace quipu::detail::on_cuda
