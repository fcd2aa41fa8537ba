// Attention in TFLOP/s as FlashAttention-2 was measured (Dao 2023, arXiv:2307.08691, section 4.1):
// 16384 tokens in all, 2048 / d heads, bf16; a forward counts 4 n^2 d for each head, half of it
// with a causal mask, a backward 2.5 times that. Counts are sums of multiples of 1, n and n^2.
#include <fmt/format.h>
#include <quipu/quipu.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "predict_count.h"
#include "quipu/core/error.h"

namespace quipu::bench {
using namespace detail;

#ifndef QUIPU_EMULATE

std::string predict_attention(const Card&) {
  fail("predictions need the emulated device: cmake --preset emulate, then build/emulate/bin/...");
}
std::vector<std::string> predicted_kernels() {
  return {};
}

#else

namespace {

constexpr std::int64_t all_tokens = 16384, features = 2048;
constexpr double mma_flops = 2 * 16 * 8 * 16, schedulers = 4;
constexpr std::int64_t lengths[] = {512, 1024, 2048, 4096, 8192, 16384};

struct Case {
  Pass pass;
  std::int64_t d;
  bool causal;
  /// FlashAttention-2 on an H100, by length: labels of bars in figures 5 and 6 of Shah et al. 2024
  /// (arXiv:2407.08608). None are there for a causal backward.
  std::vector<double> h100;
};
const Case cases[] = {
    {Pass::fwd, 64, false, {282, 306, 318, 321, 322, 324}},
    {Pass::fwd, 64, true, {180, 229, 262, 284, 295, 299}},
    {Pass::fwd, 128, false, {309, 350, 362, 368, 370, 370}},
    {Pass::fwd, 128, true, {191, 260, 298, 319, 333, 335}},
    {Pass::bwd, 64, false, {198, 238, 264, 279, 287, 291}},
    {Pass::bwd, 64, true, {}},
    {Pass::bwd, 128, false, {214, 260, 291, 310, 318, 322}},
    {Pass::bwd, 128, true, {}},
};
/// On an A100 the paper's text has the best of each pass, 73 and 63 % of 312 TFLOP/s; figures of
/// single lengths are in its plots alone.
constexpr const char* a100_published = "at best 228 forward and 197 backward";

PublishedTable table_of(const Case& c) {
  PublishedTable table;
  table.family = "attention";
  table.name = fmt::format("attention-{}-d{}{}", name_of(c.pass), c.d, c.causal ? "-causal" : "");
  table.kind = Kind::speed;
  table.pass = c.pass;
  return table;
}

Variant variant_of(const Case& c) {
  return {"ours", "attention", [=](Device device, Size size, Values) {
            const auto leaf = [&] {
              return zeros({size.batch, size.heads, size.n, c.d}, bf16, device).set_requires_grad();
            };
            const Tensor q = leaf(), k = leaf(), v = leaf();
            const AttentionOptions options{.causal = c.causal};
            return Prepared{{q, k, v}, [=] { return attention(q, k, v, options); }};
          }};
}

Size size_of(const Case& c, std::int64_t n) {
  return {n, all_tokens / n, features / c.d};
}

/// The counts of a head, times the heads.
CallCounts counts_at(const Growth& growth, const Size& size, const CallCounts& cut) {
  CallCounts counts = growth.at(double(size.n), 1, cut);
  for (LaunchCounts& launch : counts) {
    for (std::size_t k = 0; k < launch.values.size(); ++k) {
      const auto kind = static_cast<Count>(k);
      const bool is_mean =
          kind == Count::gap_in_block || kind == Count::gap_shared || kind == Count::gap_across;
      if (!is_mean) launch.values[k] *= units_of(size);
    }
  }
  return counts;
}

std::string rows_of(const Case& c, const Card& card) {
  const PublishedTable table = table_of(c);
  const Variant variant = variant_of(c);
  Counter counter(table, variant);
  const auto sample = [&](std::int64_t n) { return counter.counted({n, 1, 1}); };
  Growth growth({sample(256), sample(384), sample(512)}, Growth::Work::squares);
  const Sample other = sample(640);
  growth.choose_gaps(other);
  std::string text = fmt::format("{} (n = 640 is met to {:.2f} %)\n", table.name,
                                 100 * growth.deviation_from(other));
  for (std::size_t i = 0; i < std::size(lengths); ++i) {
    const Size size = size_of(c, lengths[i]);
    const CallCounts counts = counts_at(growth, size, counter.rehearse(size));
    const std::vector<LaunchTime> times = time_of(counts, card);
    const auto longest = std::max_element(times.begin(), times.end(),
                                          [](const auto& a, const auto& b) { return a.ms < b.ms; });
    const LaunchCounts& launch = counts[static_cast<std::size_t>(longest - times.begin())];
    const MachineCode* code = code_of(launch.kernel, card.sm);
    const double slots =
        code ? issue_slots(launch, *code) / (launch[Count::mma_flops] / mma_flops) : NAN;
    const double flops = 4.0 * double(size.n) * double(size.n) * double(c.d) * units_of(size) *
                         (c.causal ? 0.5 : 1) * (c.pass == Pass::bwd ? 2.5 : 1);
    const bool known = card.sm == 90 && !c.h100.empty();
    text +=
        fmt::format("{:>7} {:>10.0f} {:>10} {:>12.2f}  {}\n", size.n, flops / total_ms(times) / 1e9,
                    known ? fmt::format("{:.0f}", c.h100[i]) : "-", slots, longest->bound);
  }
  return text;
}

}  // namespace

std::string predict_attention(const Card& card) {
  const double cycles =
      mma_flops * card.multiprocessors * schedulers * card.clock_hz / mma_sync_flops(card);
  std::string text = fmt::format(
      "Attention in TFLOP/s, predicted for {}; beside it FlashAttention-2 as published{}; "
      "instructions for each mma, which takes a tensor core {:.2f} clocks; what bounds the longest "
      "launch\n{:>7} {:>10} {:>10} {:>12}\n",
      card.title, card.sm == 80 ? fmt::format(", {}", a100_published) : "", cycles, "n",
      "predicted", "published", "slots / mma");
  for (const Case& c : cases) text += rows_of(c, card);
  return text;
}

std::vector<std::string> predicted_kernels() {
  std::set<std::string> names;
  const auto add = [&](const CallCounts& counts) {
    for (const LaunchCounts& launch : counts) {
      if (launch.blocks > 0) names.insert(launch.kernel);
    }
  };
  for (const PublishedTable& table : read_published(published_directory())) {
    if (table.kind != Kind::speed) continue;
    for (const Variant& variant : variants_of(table)) {
      Counter counter(table, variant);
      for (const auto& row : table.rows) add(counter.rehearse({row.n, table.batch}));
    }
  }
  for (const Case& c : cases) {
    const PublishedTable table = table_of(c);
    const Variant variant = variant_of(c);
    Counter counter(table, variant);
    for (const std::int64_t n : lengths) add(counter.rehearse(size_of(c, n)));
  }
  return {names.begin(), names.end()};
}

#endif

}  // namespace quipu::bench
