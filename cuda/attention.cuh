#pragma once
// What the kernels of softmax attention share. The queries of all heads that use one key head count
// as the rows of one matrix, as on the CPU.
#include <cmath>
#include <cstdint>

#include "geometry.h"
#include "quipu/ops/attention_kernels.h"
#include "rows.cuh"

namespace quipu::on_cuda {

/// A score in backward: rounded as in forward, where it meets a mask first and no difference, with
/// which the product must not be fused.
__device__ __forceinline__ float scaled_score(float product, float scale) {
  return __fmul_rn(product, scale);
}
__device__ __forceinline__ double scaled_score(double product, double scale) {
  return __dmul_rn(product, scale);
}

/// The four products that end in a matrix: o = P v, d_q = D k, d_k = D^T q, d_v = P^T d_o.
enum class AttentionPass { forward, d_q, d_k, d_v };

/// Whether the rows of a pass's result belong to queries; otherwise they belong to keys.
constexpr bool is_of_queries(AttentionPass pass) {
  return pass == AttentionPass::forward || pass == AttentionPass::d_q;
}
/// Whether a pass needs the gradients D of scores; otherwise the weights P do.
constexpr bool goes_through_scores(AttentionPass pass) {
  return pass == AttentionPass::d_q || pass == AttentionPass::d_k;
}

/// A view (b, heads, tokens, features) as kernels get it. Steps are in elements.
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

/// One call, as far as all its kernels need it.
template <class T>
struct Attention {
  AttentionView q, k, v, d_o, out;
  bool add = false;
  T* lse = nullptr;   // written by forward, unless null; read by the others
  T* rest = nullptr;  // of the log-sum-exps; null in backward: there is none
  const T* mean = nullptr;
  T scale = 1;
  bool causal = false;
  int key_heads = 1, group = 1, n = 0, m = 0, d = 0, e = 0;
  int rows = 0;  // group n
  Divider tokens;

  /// Leaves the log-sum-exp of a row of scores; without any score it is -infinity.
  __device__ __forceinline__ void put_sum(std::int64_t at, T largest, T sum) const {
    const LogSum<T> whole = log_sum_of(largest, std::log(sum));
    lse[at] = whole.lse;
    rest[at] = whole.rest;
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
  /// The most that any row before `end` attends to, from row `first` on.
  __device__ __forceinline__ int most_keys(int first, int end) const {
    const unsigned last = static_cast<unsigned>(min(end, rows) - 1);
    return tokens.quotient(static_cast<unsigned>(first)) != tokens.quotient(last)
               ? m
               : limit(static_cast<int>(last));
  }
  /// Not more than any of these rows attends to.
  __device__ __forceinline__ int least_keys(int first, int end) const {
    if (!causal) return m;
    const unsigned last = static_cast<unsigned>(min(end, rows) - 1);
    return tokens.quotient(static_cast<unsigned>(first)) != tokens.quotient(last) ? 0
                                                                                  : limit(first);
  }
};

/// Infinity or NaN, whose product with a weight of 0 is NaN.
template <class T>
__device__ __forceinline__ bool is_no_number(T x) {
  return !(x - x == T(0));
}

/// A batch entry and key head, and where its rows lie.
struct AttentionPlace {
  int b, key_head;

  /// The first element of a row of q, o or their gradients,
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
  /// and the place of a row in what has one number a query.
  template <class T>
  __device__ __forceinline__ std::int64_t statistic(const Attention<T>& a, int row) const {
    return (std::int64_t{b} * a.key_heads + key_head) * a.rows + row;
  }
};

/// Runs the kernel of one pass by tiles through ordinary arithmetic, whatever strides and sizes.
template <class T>
void attend_by_tiles(const View& on, const Attention<T>& a, std::int64_t heads, AttentionPass pass);

}  // namespace quipu::on_cuda
