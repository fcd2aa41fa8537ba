#pragma once
// Tensor product attention (Zhang et al. 2025, arXiv:2501.06425): causal attention whose queries,
// keys and values are sums of outer products, so that a decoding cache holds factors.
#include "quipu/nn/linear.h"
#include "quipu/ops/tpa_decode/tpa_cache.h"

namespace quipu::nn {

/// Sizes of the factors, and how fast angles fall.
struct TensorProductAttentionOptions {
  std::int64_t heads = 1;     // of queries, keys and values alike
  std::int64_t head_dim = 0;  // features / heads if left 0
  std::int64_t rank = 1;      // of the queries; keys and values have rank 1
  double base = 10000;        // of the rotary angles
};

/// x (b, n, features) -> (b, n, features), causal. One product gives the factors aq (heads, rank),
/// bq (rank, head_dim), ak (heads), bk (head_dim), av (heads), bv (head_dim) of every token; bq and
/// bk are rotated by position. A token's query is aq bq / rank, its key the outer product of ak
/// and bk, its value that of av and bv.
struct TensorProductAttention : Module {
  TensorProductAttention() = default;
  TensorProductAttention(std::int64_t features, const TensorProductAttentionOptions& options,
                         const Place& place = {});
  void members(Members& m) override { m("factors", factors)("out", out).buffer("theta", theta); }

  /// All tokens at once, from keys and values in full; for training.
  Tensor operator()(const Tensor& x) const;
  /// The tokens behind those in the cache, which they are appended to: any number of them into an
  /// empty cache, else one, which attends to the factors themselves. No gradient flows through the
  /// cache.
  Tensor decode(const Tensor& x, TpaCache& cache) const;
  /// An empty cache with room for `capacity` tokens of each of b sequences.
  TpaCache make_cache(std::int64_t b, std::int64_t capacity) const;

  TensorProductAttentionOptions options;  // as given, with head_dim filled in
  Linear factors,                         // features -> all factors of a token, without bias
      out;                                // heads * head_dim -> features, without bias
  Tensor theta;                           // (1, head_dim / 2)

 private:
  struct Factors {
    Tensor aq, ak, av, bq, bk, bv;
  };
  Factors factors_at(const Tensor& x, std::int64_t position) const;
  Tensor attend(const Factors& f) const;
};

}  // namespace quipu::nn
