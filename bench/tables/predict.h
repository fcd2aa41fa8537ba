#pragma once
// How long a call would take on a card that is not here, from what the emulator counts.
//
// A launch takes as long as the slowest of: its bytes through memory at 92 % of the data sheet's
// bandwidth (the best that the published tables themselves show); its sectors through the L2 cache
// (those aside that the block had asked for so shortly before that L1 has them), and into the
// multiprocessors that have a block; its passes over the banks of shared memory; its tensor-core
// products; its instructions, one a clock in each of a multiprocessor's four schedulers. Where
// barriers keep the warps of a block together, no other block is there meanwhile, and rows are not
// fetched ahead (asynchronous copies), what it takes to fetch and what it takes to compute are
// added. To that come 3 us for the launch. Bytes through memory are those that the launch touches
// at least once, and those that it reads again when more than the L2 cache lies between. How many
// blocks run together follows from threads, registers and shared memory. Counts at large n come
// from small ones: each is a sum of multiples of the tokens, the batch, their product and the
// number of blocks, tried on a size that it was not drawn from. Which kernels run, and in how many
// blocks, is known for every n.
//
// Instructions: the emulator counts a launch's mma and the bytes that its lanes access in device
// memory and in shared memory; machine_code.csv tells how many instructions nvcc made for each of
// these in loops (scripts/machine_code). Parts of loops with mma run as often as their mma take;
// parts with accesses to device memory as often as the bytes take that are left, then parts with
// accesses to shared memory likewise; the rest once a warp. Bytes left that are less than a tenth
// are what nvcc has kept in registers and the emulator's compiler has not. The error: code that
// some trips skip counts in all where it moves nothing (masks, rescaling, slow paths: too many);
// parts of one kind count with their mean.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tables.h"

namespace quipu::bench {

/// A device as its data sheet describes it.
struct Card {
  std::string name, title;
  int sm;  // its architecture: 80, 90
  double memory_bytes_per_s, l2_bytes, l2_bytes_per_s;
  double multiprocessors, clock_hz;
  double l1_bytes;      // of a multiprocessor, shared memory in it
  double tensor_flops;  // a second; bf16, f32 sums
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
  lane_bytes,         // that lanes access in device memory
  shared_lane_bytes,  // likewise in shared memory
  barriers,           // of blocks
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
/// What nvcc made of a kernel for an architecture: a row of machine_code.csv.
struct MachineCode {
  struct Part {
    double instructions = 0, mma = 0, bytes = 0, shared_bytes = 0;  // that a lane accesses
  };
  double registers = 0;
  bool fetches_ahead = false;  // rows, by asynchronous copies, while tensor cores work
  Part once;                   // a warp
  std::array<Part, 3> loops;   // parts with mma; of the others with bytes; with shared bytes
};
/// Null for what is no kernel of the library.
const MachineCode* code_of(const std::string& kernel, int sm);
/// Instructions that the warps of a launch issue.
double issue_slots(const LaunchCounts& launch, const MachineCode& code);
/// Blocks that a multiprocessor of sm_80, 86, 89, 90 or 120 has at the same time, at most.
double blocks_fitting(int sm, double threads, double registers, double shared_bytes);

/// What mma.sync reaches of a card's tensor cores.
double mma_sync_flops(const Card& card);
/// One launch; without code, its instructions and registers are not known.
LaunchTime time_of(const LaunchCounts& launch, const Card& card, const MachineCode* code);
/// A whole call.
std::vector<LaunchTime> time_of(const CallCounts& call, const Card& card);
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
  enum class Work { tokens, squares };  // squares: also of the tokens times the tokens
  explicit Growth(std::vector<Sample> samples, Work work = Work::tokens);
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

/// Our columns of a table, or only the first, predicted. Only the emulated build can.
enum class Columns { all, first };
Comparison predict(const PublishedTable& table, const Card& card, std::int64_t max_n,
                   Columns columns = Columns::all);
bool can_predict();
/// Attention in TFLOP/s beside FlashAttention-2's published figures, as a text table.
std::string predict_attention(const Card& card);
/// The library's kernels that predictions run, sorted.
std::vector<std::string> predicted_kernels();

}  // namespace quipu::bench
