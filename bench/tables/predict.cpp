// The model of predict.h.
#include "predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quipu/core/error.h"

namespace quipu::bench {
using namespace detail;
namespace {

constexpr double memory_efficiency = 0.92, launch_ms = 0.003;
constexpr double multiprocessor_bytes_per_clock = 64;  // from L2
constexpr double sector_bytes = 32, schedulers = 4;
/// mma.sync reaches 62 % of what wgmma does on Hopper: Luo et al. 2024, arXiv:2402.13499. Before
/// Hopper there is nothing else.
constexpr double hopper_mma_efficiency = 0.62;

/// Blocks that a multiprocessor runs at the same time.
double blocks_together(const LaunchCounts& launch, const Card& card, double registers) {
  return std::max(
      1.0, std::min(std::ceil(launch.blocks / card.multiprocessors),
                    blocks_fitting(card.sm, launch.threads, registers, launch.shared_bytes)));
}

/// Bytes that all blocks of a multiprocessor ask for between two reads of a block; they advance
/// together.
double between_reads(const LaunchCounts& launch, Count gap, double together) {
  return launch[gap] * sector_bytes * together;
}

/// Bytes that are read again after more than the L2 cache came between.
double missed_bytes(const LaunchCounts& launch, const Card& card, double together) {
  const double touched = launch[Count::read_bytes] + launch[Count::written_bytes];
  const double in_block = between_reads(launch, Count::gap_in_block, together) *
                          std::min(card.multiprocessors, launch.blocks);
  const double across = launch[Count::gap_across] * touched / std::max(1.0, launch.blocks);
  double sectors = 0;
  if (std::min(in_block, touched) > card.l2_bytes) sectors += launch[Count::again_in_block];
  if (std::min(across, touched) > card.l2_bytes) sectors += launch[Count::again_across];
  return sectors * sector_bytes;
}

/// Bytes that L1 does not have: what shared memory leaves of it keeps what a block reads again.
double l2_bytes(const LaunchCounts& launch, const Card& card, double together) {
  const double l1 = card.l1_bytes - launch.shared_bytes * together;
  double sectors = launch[Count::sectors];
  if (between_reads(launch, Count::gap_in_block, together) <= l1) {
    sectors -= launch[Count::again_in_block];
  }
  if (between_reads(launch, Count::gap_shared, together) <= l1)
    sectors -= launch[Count::again_shared];
  return sector_bytes * sectors;
}

bool named(const PublishedTable& table, const char* part) {
  return table.name.find(part) != std::string::npos;
}

constexpr double heads = 12, head_dim = 128, element = 2;

/// Extra tokens in front of the grid.
double leading_tokens(const PublishedTable& table) {
  return named(table, "-l10") ? 10 : 0;
}

}  // namespace

const std::vector<Card>& cards() {
  // An L2 bandwidth that no data sheet tells is the lowest that is reported for the card.
  static const std::vector<Card> all{
      {"a100", "A100 SXM 80 GB", 80, 2.039e12, 40e6, 5120 * 1.41e9, 108, 1.41e9, 192 << 10, 312e12},
      {"a800", "A800 SXM 80 GB", 80, 2.039e12, 40e6, 5120 * 1.41e9, 108, 1.41e9, 192 << 10, 312e12},
      {"h100", "H100 SXM", 90, 3.35e12, 50e6, 5.5e12, 132, 1.83e9, 256 << 10, 989e12},
      {"h200", "H200 SXM", 90, 4.8e12, 50e6, 5.5e12, 132, 1.83e9, 256 << 10, 989e12},
  };
  return all;
}

const Card& card_named(const std::string& name) {
  std::string known;
  for (const Card& card : cards()) {
    if (card.name == name) return card;
    known += (known.empty() ? "" : ", ") + card.name;
  }
  fail("there is no card '", name, "'; known are ", known,
       " (bench/tables/predict.cpp has their figures)");
}

const Card& card_of(const PublishedTable& table) {
  // Its title says A800, but its times equal those of act, and a later title says H100.
  if (table.family == "lrpe_rotate") return card_named("h100");
  return card_named(table.device == "H100" ? "h100" : "a800");
}

bool same_kernels(const CallCounts& a, const CallCounts& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.kernel == y.kernel; });
}

double mma_sync_flops(const Card& card) {
  return card.tensor_flops * (card.sm == 90 ? hopper_mma_efficiency : 1);
}

LaunchTime time_of(const LaunchCounts& launch, const Card& card, const MachineCode* code) {
  LaunchTime time{launch.kernel, 0, launch.blocks, 0, ""};
  const double together = blocks_together(launch, card, code ? code->registers : 0);
  time.memory_bytes = launch[Count::read_bytes] + launch[Count::written_bytes] +
                      missed_bytes(launch, card, together);
  // A multiprocessor without a block does nothing. Fills, copies and library calls tell no blocks.
  const double busy =
      launch.blocks > 0 ? std::min(launch.blocks, card.multiprocessors) : card.multiprocessors;
  const double share = busy / card.multiprocessors, clocks = busy * card.clock_hz;
  const double from_l2 = l2_bytes(launch, card, together);
  const double tensor_flops = code ? mma_sync_flops(card) : card.tensor_flops;  // a library's
  using Bound = std::pair<double, const char*>;
  const Bound fetching = std::max<Bound>(
      {{time.memory_bytes / (memory_efficiency * card.memory_bytes_per_s), "memory"},
       {from_l2 / card.l2_bytes_per_s, "L2"},
       {from_l2 / (clocks * multiprocessor_bytes_per_clock), "few blocks"}});
  const Bound computing = std::max<Bound>(
      {{launch[Count::passes] / clocks, "shared memory"},
       {launch[Count::mma_flops] / (share * tensor_flops), "tensor cores"},
       {code ? issue_slots(launch, *code) / (schedulers * clocks) : 0, "instructions"}});
  const Bound slowest = std::max(fetching, computing);
  const bool apart = launch[Count::barriers] > 0 && together == 1 && code && !code->fetches_ahead;
  const double seconds = apart ? fetching.first + computing.first : slowest.first;
  time.ms = 1e3 * seconds + launch_ms;
  time.bound = 1e3 * seconds <= launch_ms ? "launch"
               : apart                    ? "fetching, then computing"
                                          : slowest.second;
  return time;
}

std::vector<LaunchTime> time_of(const CallCounts& call, const Card& card) {
  std::vector<LaunchTime> times;
  for (const LaunchCounts& launch : call) {
    times.push_back(time_of(launch, card, code_of(launch.kernel, card.sm)));
  }
  return times;
}

double total_ms(const std::vector<LaunchTime>& launches) {
  double sum = 0;
  for (const LaunchTime& launch : launches) sum += launch.ms;
  return sum;
}

double least_bytes(const PublishedTable& table, std::int64_t n) {
  const double tokens = static_cast<double>(tokens_of(table, n)) + leading_tokens(table);
  const double batch = static_cast<double>(table.batch);
  const double one = batch * heads * tokens * head_dim * element;
  const bool forward = table.pass == Pass::fwd;
  if (table.family == "act" && named(table, "act_none")) return forward ? 0 : 3 * one;
  if (table.family == "act") return (forward ? 2 : 4) * one;
  if (table.family == "lrpe_rotate") {
    return (forward ? 2 : named(table, "act_none") ? 3 : 4) * one;
  }
  if (table.family == "lrpe_cosine") return (forward ? 3 : 4) * one;
  if (table.family == "flao") return (forward ? 5 : 13) * one;
  constexpr double h = 32, r = 16;  // tpa_decode
  return element * batch * (h * r + r * head_dim + tokens * (2 * h + 2 * head_dim) + h * head_dim);
}

std::string how_predicted() {
  return fmt::format(
      "Predicted, not measured: kernels were run on the emulator at small n and their launches "
      "counted; counts at the n of a row are sums of multiples of its tokens, its batch and its "
      "blocks, drawn from small sizes and tried on another. A launch takes the longest of: its "
      "bytes through memory at {:.0f} % of the data sheet's bandwidth (touched once, and read "
      "again "
      "where more than the L2 cache lies between); its sectors through L2, and into the "
      "multiprocessors that have a block; its passes over shared memory; its tensor-core products, "
      "at {:.0f} % of the data sheet's figure on sm_90; its instructions by the machine code. "
      "Fetching and computing are added where barriers keep them apart and registers or shared "
      "memory leave a multiprocessor one block. To that come {:.0f} us for the launch. Left out: "
      "latency, last waves that do not fill the card, special functions, conflicts in L2, clocks "
      "that fall under load, and time on the host. The byte limit is what the least bytes take at "
      "full bandwidth.",
      100 * memory_efficiency, 100 * hopper_mma_efficiency, 1e3 * launch_ms);
}

}  // namespace quipu::bench
