#pragma once
// How long a call would take on a card that is not here, from what the emulator counts.
//
// A launch takes as long as the slowest of: its bytes through memory at 92 % of the data sheet's
// bandwidth (the best that the published tables themselves show); its sectors through the L2 cache
// (those aside that the block had asked for so shortly before that L1 has them), and into the
// multiprocessors that have a block; its passes over the banks of shared memory; its tensor-core
// products; its other arithmetic as stated. To that come 3 us for the launch. Bytes through memory
// are those that the launch touches at least once, and those that it reads again when more than the
// L2 cache lies between. Counts at large n come from small ones: each is a sum of multiples of the
// tokens, the batch, their product and the number of blocks, tried on a size that it was not drawn
// from. Which kernels run, and in how many blocks, is known for every n.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tables.h"

namespace quipu::bench {

/// A device as its data sheet describes it.
struct Card {
  std::string name, title;
  double memory_bytes_per_s, l2_bytes, l2_bytes_per_s;
  double multiprocessors, clock_hz;
  double l1_bytes, shared_bytes;    // of a multiprocessor: in all, and at most as shared memory
  double tensor_flops, fp32_flops;  // a second; tensor cores: bf16, f32 sums
};
const std::vector<Card>& cards();
/// Throws, with the names there are.
const Card& card_named(const std::string& name);
/// The one that a table was measured on.
const Card& card_of(const PublishedTable& table);

/// What is counted of a launch.
enum class Count {
  read_bytes,     // touched at least once
  written_bytes,  // likewise
  sectors,        // asked for, 32 bytes each
  passes,         // over the banks of shared memory
  mma_flops,
  again_in_block,  // sectors read again by the block that touched them last, and that no other did
  gap_in_block,    // mean of the sectors that the block asked for in between
  again_shared,  // likewise of sectors that several blocks touch: one of them always has just done
  gap_shared,
  again_across,  // sectors read again by another block
  gap_across,    // mean of the blocks in between
  kinds
};
struct LaunchCounts {
  std::string kernel;
  double threads = 0, blocks = 0, shared_bytes = 0;  // of a block: threads, dynamic shared memory
  std::array<double, static_cast<std::size_t>(Count::kinds)> values{};

  double operator[](Count c) const { return values[static_cast<std::size_t>(c)]; }
  double& operator[](Count c) { return values[static_cast<std::size_t>(c)]; }
};
/// The launches of one call.
using CallCounts = std::vector<LaunchCounts>;
/// Whether both run the same kernels in the same order.
bool same_kernels(const CallCounts& a, const CallCounts& b);

struct LaunchTime {
  std::string kernel;
  double ms = 0, blocks = 0, memory_bytes = 0;
  const char* bound = "";  // what takes longest
};
/// One launch; `flops` is its arithmetic outside of tensor cores.
LaunchTime time_of(const LaunchCounts& launch, const Card& card, double flops);
/// A whole call; `flops` is shared among launches by the bytes that they touch.
std::vector<LaunchTime> time_of(const CallCounts& call, const Card& card, double flops);
double total_ms(const std::vector<LaunchTime>& launches);

/// What was counted at one size.
struct Sample {
  double tokens = 0, units = 0;  // units: batch times heads
  CallCounts counts;
};
/// Counts at any size, from samples: sums of multiples of 1, the tokens, the units, their product
/// and the blocks, as far as the samples tell them apart.
class Growth {
 public:
  explicit Growth(std::vector<Sample> samples);
  /// Gaps grow with the size of a part, or their sum grows with the work: takes what fits this one.
  void choose_gaps(const Sample& other);
  /// `cut` tells the kernels there, and into how many blocks the work is cut.
  CallCounts at(double tokens, double units, const CallCounts& cut) const;
  /// By how much the fit misses another sample: the largest share over the kinds that are sums.
  double deviation_from(const Sample& other) const;
  /// Whether the blocks of a size are as many as those of the samples grow to, or the samples tell
  /// what blocks cost.
  bool knows(double tokens, double units, const CallCounts& cut) const;

 private:
  /// How much each sample counts for a size.
  std::vector<double> weights(double tokens, double units, const CallCounts& cut) const;

  std::vector<Sample> samples_;
  bool sums_of_gaps_ = false;
  // Terms that are not the sum of earlier ones, as columns of an orthogonal and a triangular
  // matrix.
  std::vector<std::size_t> used_;
  std::vector<std::vector<double>> orthogonal_, triangular_;
};

/// Bytes that no implementation can avoid: inputs once, outputs once, gradients read and written.
double least_bytes(const PublishedTable& table, std::int64_t n);
/// Arithmetic outside of tensor cores, as stated.
double stated_flops(const PublishedTable& table, std::int64_t n);

/// Our columns of a table, or only the first, predicted. Only the emulated build can.
enum class Columns { all, first };
Comparison predict(const PublishedTable& table, const Card& card, std::int64_t max_n,
                   Columns columns = Columns::all);
bool can_predict();

}  // namespace quipu::bench
