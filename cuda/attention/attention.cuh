#pragma once
// What the kernels of softmax attention share. With grouped queries, the queries of all heads that
// share a key head are the rows of one matrix, as on the CPU.
#include <cmath>
#include <cstdint>

#include "quipu/cuda/tile/geometry.h"
#include "quipu/cuda/tile/rows.cuh"
#include "quipu/ops/attention_kernels.h"

namespace quipu::detail::on_cuda {

/// A score in backward, rounded as in forward: the product must not be fused with the subtraction
/// of the log-sum-exp, which forward does not do there.
__device__ __forceinline__ float scaled_score(float product, float scale) {
  return __fmul_rn(product, scale);
}
__device__ __forceinline__ double scaled_score(double product, double scale) {
  return __dmul_rn(product, scale);
}

/// The passes, by the product that ends them: o = P v, d_q = D k, d_k = D^T q, d_v = P^T d_o, where
/// P are the weights and D the gradients of scores.
enum class AttentionPass { forward, d_q, d_k, d_v };

/// Whether the rows of a pass's result belong to queries; otherwise they belong to keys.
constexpr bool is_of_queries(AttentionPass pass) {
  return pass == AttentionPass::forward || pass == AttentionPass::d_q;
}
/// Whether a pass needs the gradients D of scores; otherwise the weights P suffice.
constexpr bool goes_through_scores(AttentionPass pass) {
  return pass == AttentionPass::d_q || pass == AttentionPass::d_k;
}

/// A view (b, heads, tokens, features) as kernels get it. Strides are in elements.
struct AttentionView {
  AttentionView() = default;
  explicit AttentionView(const View& v)
      : data(v.data),
        dtype(v.dtype),
        packed(has_packed_rows(v, 3)),
        batch(v.stride(0)),
        head(v.stride(1)),
        token(v.stride(2)),
        step(v.stride(3)) {}

  void* data = nullptr;
  DType dtype = DType::f32;
  bool packed = false;
  std::int64_t batch = 0, head = 0, token = 0, step = 0;
};

/// The arguments that all kernels of a call share.
template <class T>
struct Attention {
  AttentionView q, k, v, d_o, out;
  bool add = false;
  T* lse = nullptr;   // written by forward, unless null; read by the others
  T* rest = nullptr;  // low parts of the log-sum-exps; may be null in backward
  const T* mean = nullptr;
  T scale = 1;
  bool causal = false;
  int key_heads = 1, group = 1, n = 0, m = 0, d = 0, e = 0;
  int rows = 0;  // group n
  Divider tokens;

  /// Stores the log-sum-exp of a row of scores; without any score it is -infinity.
  __device__ __forceinline__ void put_sum(std::int64_t at, const LogSum<T>& sum) const {
    lse[at] = sum.lse;
    rest[at] = sum.rest;
  }
  __device__ __forceinline__ T rest_of(std::int64_t at) const {
    return rest != nullptr ? rest[at] : T(0);
  }
  /// The number of keys that a row attends to; they are the first ones.
  __device__ __forceinline__ int limit(int row) const {
    if (!causal) return m;
    const int token = row - static_cast<int>(tokens.quotient(static_cast<unsigned>(row))) * n;
    return max(0, min(m, token + 1 + m - n));
  }
  /// Whether `count` rows from `first` on are of one head of queries.
  __device__ __forceinline__ bool is_in_one_head(int first, int count) const {
    return group == 1 || tokens.quotient(static_cast<unsigned>(first)) ==
                             tokens.quotient(static_cast<unsigned>(first + count - 1));
  }
  /// An upper bound of limit() over the rows [first, end).
  __device__ __forceinline__ int most_keys(int first, int end) const {
    const int last = min(end, rows) - 1;
    return is_in_one_head(first, last + 1 - first) ? limit(last) : m;
  }
  /// A lower bound of limit() over the rows [first, end).
  __device__ __forceinline__ int least_keys(int first, int end) const {
    if (!causal) return m;
    return is_in_one_head(first, min(end, rows) - first) ? limit(first) : 0;
  }
};

/// Whether x is infinity or NaN: its product with a weight of 0 would be NaN.
template <class T>
__device__ __forceinline__ bool is_nonfinite(T x) {
  return !(x - x == T(0));
}

/// A batch entry and key head; gives offsets of its rows in elements.
struct HeadOffsets {
  int b, key_head;

  /// The offset of a row of q, o or their gradients,
  template <class T>
  __device__ __forceinline__ std::int64_t query(const Attention<T>& a, const AttentionView& x,
                                                int row) const {
    const int head = static_cast<int>(a.tokens.quotient(static_cast<unsigned>(row)));
    return b * x.batch + (std::int64_t{key_head} * a.group + head) * x.head +
           (row - head * a.n) * x.token;
  }
  /// of a row of k, v or their gradients,
  __device__ __forceinline__ std::int64_t key(const AttentionView& x, int row) const {
    return b * x.batch + key_head * x.head + row * x.token;
  }
  /// of either,
  template <bool of_queries, class T>
  __device__ __forceinline__ std::int64_t start(const Attention<T>& a, const AttentionView& x,
                                                int row) const {
    if constexpr (of_queries) return query(a, x, row);
    return key(x, row);
  }
  /// and the index of a row in arrays of one number a query.
  template <class T>
  __device__ __forceinline__ std::int64_t statistic(const Attention<T>& a, int row) const {
    return (std::int64_t{b} * a.key_heads + key_head) * a.rows + row;
  }
};

/// Workspace that means are found in: (all_rows) each, but for `turns`.
template <class T>
struct AttentionMeans {
  T* mean;                  // the row sums of o * a.d_o
  T* sizes;                 // those of |a.d_o|; null where they are not wanted
  unsigned* turns;          // becomes 0
  std::int64_t turn_count;  // at most all_rows + 1
};
template <class T>
void attention_means(const View& on, const Attention<T>& a, const View& o, std::int64_t all_rows,
                     const AttentionMeans<T>& to);
/// Runs one pass by the general kernel, for any strides and sizes.
template <class T>
void attention_general(const View& on, const Attention<T>& a, std::int64_t heads,
                       AttentionPass pass);

}  // namespace quipu::detail::on_cuda
