#include <fmt/format.h>

#include <stdexcept>

#include "comparison.h"

namespace quipu::bench::report {
namespace {

std::string text_of(const Case& c) {
  return c.text();
}
std::string text_of(const std::string& name) {
  return name;
}

template <class Map, class Other>
void print_missing(const char* title, const Map& cases, const Other& others) {
  bool first = true;
  for (const auto& entry : cases) {
    if (others.contains(entry.first)) continue;
    if (first) fmt::print("\n{}\n", title);
    first = false;
    fmt::print("  {}\n", text_of(entry.first));
  }
}

void print_left_out(const Run& run) {
  if (!run.left_out.empty()) fmt::print("\nleft out:\n");
  for (const auto& [name, why] : run.left_out) fmt::print("  {} {}\n", name, why);
}

}  // namespace

void print_peers(const Comparison& comparison) {
  constexpr const char* line = "{:<44} {:>9} {:>9}  {:<14} {:>6}{}\n";
  fmt::print(line, "case", "ours ms", "peer ms", "fastest peer", "ratio", "");
  for (const Row& row : comparison.rows) {
    if (row.peer.empty()) continue;
    fmt::print(line, row.c.text(), fmt::format("{:.3f}", row.ours.ms),
               fmt::format("{:.3f}", row.peer_ms), row.peer, fmt::format("{:.2f}", row.to_peer()),
               row.to_peer() < 1 ? "  SLOWER" : "");
  }
  const std::map<Case, Timing> ours = cases_of(comparison.now);
  print_missing("ours, without a peer:", ours, comparison.peers->ms);
  print_missing("peers, without ours:", comparison.peers->ms, ours);
  print_left_out(comparison.now);
  const Tally all = tally_peers(comparison);
  if (all.rows == 0) throw std::runtime_error("no case of ours has a peer");
  fmt::print("\n{} rows, {} slower than the fastest peer\n", all.rows, all.slower);
  fmt::print("geometric mean of the ratios: {:.3f}\n", all.mean);
}

void print_earlier(const Comparison& comparison) {
  constexpr const char* line = "{:<56} {:>10} {:>10} {:>6}{}\n";
  fmt::print(line, "benchmark", "now ms", "before ms", "ratio", "");
  const auto &now = comparison.now.timings, &before = comparison.earlier->timings;
  double logarithms = 0;
  int rows = 0, slower = 0;
  for (const auto& [name, timing] : now) {
    const auto earlier = before.find(name);
    if (earlier == before.end()) continue;
    const double ratio = earlier->second.ms / timing.ms;
    const bool is_slower = ratio < 1 - slack;
    logarithms += std::log(ratio);
    ++rows;
    slower += is_slower;
    fmt::print(line, name, fmt::format("{:.4g}", timing.ms),
               fmt::format("{:.4g}", earlier->second.ms), fmt::format("{:.2f}", ratio),
               is_slower ? "  SLOWER" : "");
  }
  print_missing("now, not in the baseline:", now, before);
  print_missing("in the baseline, not now:", before, now);
  print_left_out(comparison.now);
  if (rows == 0) throw std::runtime_error("the two runs have no benchmark in common");
  fmt::print("\n{} rows, {} slower by more than {:.0f} %\n", rows, slower, 100 * slack);
  fmt::print("geometric mean of the ratios: {:.3f}\n", std::exp(logarithms / rows));
}

}  // namespace quipu::bench::report
