#pragma once
// The numbers 0 .. n - 1 in an order that a seed and an epoch give, without a table of it.
// Internal to nn/.
#include <cstdint>

namespace quipu::nn::detail {

/// A Feistel network whose rounds are Philox functions; numbers that leave [0, n) are sent through
/// again. So any element is there at once, whatever n is, and it is the same on every machine.
class Permutation {
 public:
  Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch);
  /// Where the order has `i`, for 0 <= i < n.
  std::int64_t operator()(std::int64_t i) const;

 private:
  std::uint64_t once(std::uint64_t x) const;

  std::uint64_t n_, seed_, epoch_;
  int high_bits_, low_bits_;
};

}  // namespace quipu::nn::detail
