// quipu-compare OURS.json PEERS.jsonl...: our times beside the fastest peer's, row by row.
//
// OURS.json is what quipu-bench writes with --benchmark_out; of repetitions it takes the median, by
// the clock on the wall. A line of the peers is {"op", "n", "dtype", "pass", "peer", "ms"}.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace {

using nlohmann::json;

/// What is timed, named as the peers name it; our variants are parts of the name.
struct Case {
  std::string op, pass, dtype;
  std::int64_t n;

  auto operator<=>(const Case&) const = default;
  std::string text() const { return fmt::format("{} {} {} n:{}", op, pass, dtype, n); }
};

using Times = std::map<Case, std::vector<double>>;                             // ms
using PeerTimes = std::map<Case, std::map<std::string, std::vector<double>>>;  // by peer

[[noreturn]] void fail(const std::string& text) {
  throw std::runtime_error(text);
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const std::size_t half = times.size() / 2;
  return times.size() % 2 == 1 ? times[half] : (times[half - 1] + times[half]) / 2;
}

std::ifstream open(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail("cannot read " + path);
  return file;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text) c == at ? parts.emplace_back() : parts.back() += c;
  return parts;
}

/// `op/variant/pass/dtype/n:256/cpu`, the variant perhaps missing; false for other benchmarks.
bool parse(const std::string& name, Case& found) {
  const std::vector<std::string> parts = split(name, '/');
  for (std::size_t i = 1; i + 2 < parts.size(); ++i) {
    if (parts[i] != "fwd" && parts[i] != "bwd") continue;
    if (parts[i + 2].rfind("n:", 0) != 0) return false;
    found = {parts[0], parts[i], parts[i + 1], std::stoll(parts[i + 2].substr(2))};
    for (std::size_t k = 1; k < i; ++k) found.op += "_" + parts[k];
    return true;
  }
  return false;
}

double milliseconds(const json& benchmark) {
  const std::map<std::string, double> units{{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}};
  return benchmark.at("real_time").get<double>() *
         units.at(benchmark.at("time_unit").get<std::string>());
}

/// Every run; or, in a file of aggregates, medians.
Times read_ours(const std::string& path) {
  const json all = json::parse(open(path), nullptr, false);
  if (all.is_discarded() || !all.contains("benchmarks")) {
    fail(path + " is not what quipu-bench writes with --benchmark_out");
  }
  Times runs, medians;
  for (const json& benchmark : all["benchmarks"]) {
    const std::string name = benchmark.value("run_name", benchmark.at("name").get<std::string>());
    Case found;
    if (!parse(name, found)) continue;
    if (benchmark.value("error_occurred", false)) fail(path + ": " + name + " failed");
    if (benchmark.value("run_type", "iteration") == "iteration") {
      runs[found].push_back(milliseconds(benchmark));
    } else if (benchmark.value("aggregate_name", "") == "median") {
      medians[found] = {milliseconds(benchmark)};
    }
  }
  runs.merge(medians);
  // Eager autograd keeps what kv_and_qkv keeps: backward is compared with that.
  for (auto entry = runs.begin(); entry != runs.end();) {
    const bool of_flao = entry->first.pass == "bwd" && entry->first.op == "flao";
    entry = of_flao ? runs.erase(entry) : std::next(entry);
  }
  Times ours;
  for (auto& [c, times] : runs) {
    Case named = c;
    if (c.pass == "bwd" && c.op == "flao_keep_kv_and_qkv") named.op = "flao";
    ours[named] = times;
  }
  return ours;
}

void read_peers(const std::string& path, PeerTimes& peers) {
  std::ifstream file = open(path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      const json row = json::parse(line);
      Case c{row.at("op"), row.at("pass"), row.at("dtype"), row.at("n")};
      std::string peer = row.at("peer");
      // Another way to the same result.
      const std::string naive = "_naive";
      if (const std::size_t at = c.op.find(naive); at != std::string::npos) {
        c.op.erase(at, naive.size());
        peer += " naive";
      }
      peers[c][peer].push_back(row.at("ms").get<double>());
    } catch (const json::exception& error) {
      fail(fmt::format("{}:{}: {}", path, number, error.what()));
    }
  }
}

struct Fastest {
  std::string peer;
  double ms;
};
Fastest fastest_of(const std::map<std::string, std::vector<double>>& peers) {
  Fastest found{"", INFINITY};
  for (const auto& [peer, times] : peers) {
    if (const double ms = median(times); ms < found.ms) found = {peer, ms};
  }
  return found;
}

template <class Map, class Other>
void print_missing(const char* title, const Map& cases, const Other& others) {
  bool first = true;
  for (const auto& entry : cases) {
    if (others.contains(entry.first)) continue;
    if (first) fmt::print("\n{}\n", title);
    first = false;
    fmt::print("  {}\n", entry.first.text());
  }
}

void compare(const Times& ours, const PeerTimes& peers) {
  constexpr const char* row = "{:<44} {:>9} {:>9}  {:<14} {:>6}{}\n";
  fmt::print(row, "case", "ours ms", "peer ms", "fastest peer", "ratio", "");
  double logarithms = 0;
  int rows = 0, slower = 0;
  for (const auto& [c, times] : ours) {
    const auto peer = peers.find(c);
    if (peer == peers.end()) continue;
    const double ms = median(times);
    const Fastest best = fastest_of(peer->second);
    const double ratio = best.ms / ms;
    if (!(ratio > 0) || !std::isfinite(ratio)) fail(c.text() + ": a time is not positive");
    logarithms += std::log(ratio);
    ++rows;
    slower += ratio < 1;
    fmt::print(row, c.text(), fmt::format("{:.3f}", ms), fmt::format("{:.3f}", best.ms), best.peer,
               fmt::format("{:.2f}", ratio), ratio < 1 ? "  SLOWER" : "");
  }
  print_missing("ours, without a peer:", ours, peers);
  print_missing("peers, without ours:", peers, ours);
  if (rows == 0) fail("no case of ours has a peer");
  fmt::print("\n{} rows, {} slower than the fastest peer\n", rows, slower);
  fmt::print("geometric mean of the ratios: {:.3f}\n", std::exp(logarithms / rows));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: bench/compare OURS.json PEERS.jsonl...\n");
    return 2;
  }
  try {
    PeerTimes peers;
    for (int i = 2; i < argc; ++i) read_peers(argv[i], peers);
    compare(read_ours(argv[1]), peers);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench/compare: {}\n", error.what());
    return 1;
  }
  return 0;
}
