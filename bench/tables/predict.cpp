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
constexpr double sector_bytes = 32, threads_of_multiprocessor = 2048, blocks_of_multiprocessor = 32;

/// Blocks that a multiprocessor runs at the same time, registers aside.
double blocks_together(const LaunchCounts& launch, const Card& card) {
  double blocks =
      std::min(blocks_of_multiprocessor, std::ceil(launch.blocks / card.multiprocessors));
  if (launch.threads > 0) {
    blocks = std::min(blocks, std::floor(threads_of_multiprocessor / launch.threads));
  }
  if (launch.shared_bytes > 0) {
    blocks = std::min(blocks, std::floor(card.shared_bytes / launch.shared_bytes));
  }
  return std::max(1.0, blocks);
}

/// Bytes that all blocks of a multiprocessor ask for between two reads of a block; they advance
/// together.
double between_reads(const LaunchCounts& launch, Count gap, const Card& card) {
  return launch[gap] * sector_bytes * blocks_together(launch, card);
}

/// Bytes that are read again after more than the L2 cache came between.
double missed_bytes(const LaunchCounts& launch, const Card& card) {
  const double touched = launch[Count::read_bytes] + launch[Count::written_bytes];
  const double in_block = between_reads(launch, Count::gap_in_block, card) *
                          std::min(card.multiprocessors, launch.blocks);
  const double across = launch[Count::gap_across] * touched / std::max(1.0, launch.blocks);
  double sectors = 0;
  if (std::min(in_block, touched) > card.l2_bytes) sectors += launch[Count::again_in_block];
  if (std::min(across, touched) > card.l2_bytes) sectors += launch[Count::again_across];
  return sectors * sector_bytes;
}

/// Bytes that L1 does not have: what shared memory leaves of it keeps what a block reads again.
double l2_bytes(const LaunchCounts& launch, const Card& card) {
  const double l1 = card.l1_bytes - launch.shared_bytes * blocks_together(launch, card);
  double sectors = launch[Count::sectors];
  if (between_reads(launch, Count::gap_in_block, card) <= l1) {
    sectors -= launch[Count::again_in_block];
  }
  if (between_reads(launch, Count::gap_shared, card) <= l1) sectors -= launch[Count::again_shared];
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
      {"a100", "A100 SXM 80 GB", 2.039e12, 40e6, 5120 * 1.41e9, 108, 1.41e9, 192 << 10, 164 << 10,
       312e12, 19.5e12},
      {"a800", "A800 SXM 80 GB", 2.039e12, 40e6, 5120 * 1.41e9, 108, 1.41e9, 192 << 10, 164 << 10,
       312e12, 19.5e12},
      {"h100", "H100 SXM", 3.35e12, 50e6, 5.5e12, 132, 1.83e9, 256 << 10, 228 << 10, 989e12,
       66.9e12},
      {"h200", "H200 SXM", 4.8e12, 50e6, 5.5e12, 132, 1.83e9, 256 << 10, 228 << 10, 989e12,
       66.9e12},
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

LaunchTime time_of(const LaunchCounts& launch, const Card& card, double flops) {
  LaunchTime time{launch.kernel, 0, launch.blocks, 0, ""};
  time.memory_bytes =
      launch[Count::read_bytes] + launch[Count::written_bytes] + missed_bytes(launch, card);
  // A multiprocessor without a block does nothing. Fills, copies and library calls tell no blocks.
  const double busy =
      launch.blocks > 0 ? std::min(launch.blocks, card.multiprocessors) : card.multiprocessors;
  const double share = busy / card.multiprocessors;
  const double from_l2 = l2_bytes(launch, card);
  const std::pair<double, const char*> bounds[] = {
      {time.memory_bytes / (memory_efficiency * card.memory_bytes_per_s), "memory"},
      {from_l2 / card.l2_bytes_per_s, "L2"},
      {from_l2 / (busy * multiprocessor_bytes_per_clock * card.clock_hz), "few blocks"},
      {launch[Count::passes] / busy / card.clock_hz, "shared memory"},
      {launch[Count::mma_flops] / (share * card.tensor_flops), "tensor cores"},
      {flops / (share * card.fp32_flops), "arithmetic"}};
  const auto slowest = std::max_element(std::begin(bounds), std::end(bounds));
  time.ms = 1e3 * slowest->first + launch_ms;
  time.bound = 1e3 * slowest->first > launch_ms ? slowest->second : "launch";
  return time;
}

std::vector<LaunchTime> time_of(const CallCounts& call, const Card& card, double flops) {
  const auto touched = [](const LaunchCounts& l) {
    return l[Count::read_bytes] + l[Count::written_bytes];
  };
  double all = 0;
  for (const LaunchCounts& launch : call) all += touched(launch);
  std::vector<LaunchTime> times;
  for (const LaunchCounts& launch : call) {
    times.push_back(time_of(launch, card, all == 0 ? 0 : flops * touched(launch) / all));
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

double stated_flops(const PublishedTable& table, std::int64_t n) {
  const double tokens = static_cast<double>(tokens_of(table, n)) + leading_tokens(table);
  const double batch = static_cast<double>(table.batch);
  const double elements = batch * heads * tokens * head_dim;
  const bool forward = table.pass == Pass::fwd;
  const bool plain = named(table, "act_none");
  const double of_act = plain ? (forward ? 0 : 1) : forward ? 10 : 20;  // with an exponential
  constexpr double angle = 40;  // of a sine and a cosine, once for the whole batch
  if (table.family == "act") return of_act * elements;
  if (table.family == "lrpe_rotate") return (of_act + 3) * elements + angle * elements / 2 / batch;
  if (table.family == "lrpe_cosine") return 4 * elements + angle * elements / batch;
  if (table.family == "flao") return (forward ? 1 : 8) * elements;
  constexpr double h = 32;
  return 20 * batch * tokens * h;
}

std::string how_predicted() {
  return fmt::format(
      "Predicted, not measured: kernels were run on the emulator at small n and their launches "
      "counted; counts at the n of a row are sums of multiples of its tokens, its batch and its "
      "blocks, drawn from small sizes and tried on another. A launch takes the longest of: its "
      "bytes through memory at {:.0f} % of the data sheet's bandwidth (touched once, and read "
      "again "
      "where more than the L2 cache lies between); its sectors through L2, and into the "
      "multiprocessors that have a block; its passes over shared memory; its tensor-core products; "
      "its stated arithmetic. To that come {:.0f} us for the launch. Left out: latency, occupancy "
      "and registers, last waves that do not fill the card, instruction issue, special functions, "
      "conflicts in L2, clocks that fall under load, and time on the host. The byte limit is what "
      "the least bytes take at full bandwidth.",
      100 * memory_efficiency, 1e3 * launch_ms);
}

}  // namespace quipu::bench
