#pragma once
// The cache of tensor product attention: the factors of the keys and values so far, for decoding
// token by token with tpa_decode.
#include "quipu/core/tensor.h"

namespace quipu {

/// How many products a key and a value are the sum of.
struct TpaRanks {
  std::int64_t key = 1,  // of ak and bk
      value = 1;         // of av and bv
};

/// Room for the factors that tpa_decode takes, which tokens are appended to in place. A token takes
/// 2h + d + e numbers at rank 1, where keys and values would take h (d + e).
///
///   TpaCache cache;
///   cache.reserve(b, 4096, h, d, e, bf16);
///   cache.append(ak, av, bk, bv);
///   const TpaCache::Factors past = cache.view();
///   o = tpa_decode(aq, past.ak, past.av, bq, past.bk, past.bv);
class TpaCache {
 public:
  /// For each sequence and token; at higher ranks (b, n, rank, ...).
  struct Factors {
    Tensor ak,  // (b, n, h): heads of the keys
        av,     // (b, n, h): heads of the values
        bk,     // (b, n, d): features of the keys
        bv;     // (b, n, e): features of the values
  };

  /// Makes room for `capacity` tokens in all. Tokens that are held stay: then everything but the
  /// capacity must be as it was. At rank 1 factors have three dimensions, else four.
  void reserve(std::int64_t b, std::int64_t capacity, std::int64_t h, std::int64_t d,
               std::int64_t e, DType dtype, Device device = {}, TpaRanks ranks = {});

  /// Copies n tokens behind those that are there: ak (b, n, h), av (b, n, h), bk (b, n, d),
  /// bv (b, n, e). Throws where they do not fit. No gradient flows through the cache.
  void append(const Tensor& ak, const Tensor& av, const Tensor& bk, const Tensor& bv);

  /// The factors of all tokens so far; they share the cache's memory.
  Factors view() const;

  // Tokens of each sequence: that are held, and that there is room for.
  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  /// Forgets all tokens; the room stays.
  void clear() { length_ = 0; }

 private:
  Factors room_;
  std::int64_t length_ = 0, capacity_ = 0;
};

}  // namespace quipu
