#include "quipu/nn/data/permutation.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "quipu/core/error.h"
#include "quipu/core/random/philox.h"

namespace quipu::nn::detail {
using namespace quipu::detail;

namespace {

constexpr std::uint32_t rounds = 6;  // even, so that the halves end where they began
constexpr int fewest_bits = 8;       // halves of fewer bits would prefer some orders
// Tensors are drawn from blocks whose third word is 0, so the same seed gives other numbers here.
constexpr std::uint32_t purpose = 0x5u << 28;

std::uint64_t mask(int bits) {
  return (std::uint64_t{1} << bits) - 1;
}

}  // namespace

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch)
    : n_(static_cast<std::uint64_t>(n)), seed_(seed), epoch_(epoch) {
  ensure(n > 0, "a permutation of ", n, " numbers");
  const int bits = std::max(fewest_bits, static_cast<int>(std::bit_width(n_ - 1)));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

std::uint64_t Permutation::once(std::uint64_t x) const {
  std::uint64_t high = x >> low_bits_, low = x & mask(low_bits_);
  int high_bits = high_bits_, low_bits = low_bits_;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    // A half has 32 bits at most, so the other words are free for the epoch and the round.
    const PhiloxBlock words =
        philox_block({static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(epoch_ >> 32),
                      purpose | round, static_cast<std::uint32_t>(epoch_)},
                     PhiloxKey(seed_));
    high ^= words.w0 & mask(high_bits);
    std::swap(high, low);
    std::swap(high_bits, low_bits);
  }
  return high << low_bits_ | low;
}

std::int64_t Permutation::operator()(std::int64_t i) const {
  std::uint64_t x = once(static_cast<std::uint64_t>(i));
  while (x >= n_) x = once(x);
  return static_cast<std::int64_t>(x);
}

}  // namespace quipu::nn::detail
