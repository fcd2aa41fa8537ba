// quipu-compare OURS.json PEERS.jsonl...: our times beside the fastest peer's, row by row.
// quipu-compare OURS.json --baseline EARLIER.json: our times beside those of an earlier run of
// ours.
//
// OURS.json is what quipu-bench writes with --benchmark_out; of repetitions it takes the median, by
// the clock on the wall. A line of the peers is {"op", "n", "dtype", "pass", "peer", "ms"}.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
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

using Runs = std::map<std::string, std::vector<double>>;                       // ms, by name
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
  if (std::find(parts.begin(), parts.end(), "reference") != parts.end()) return false;
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

/// The runs of the benchmarks whose names are wanted; in a file of aggregates, their medians.
Runs read_runs(const std::string& path, const std::function<bool(const std::string&)>& is_wanted) {
  const json all = json::parse(open(path), nullptr, false);
  if (all.is_discarded() || !all.contains("benchmarks")) {
    fail(path + " is not what quipu-bench writes with --benchmark_out");
  }
  Runs runs, medians;
  for (const json& benchmark : all["benchmarks"]) {
    const std::string name = benchmark.value("run_name", benchmark.at("name").get<std::string>());
    if (!is_wanted(name)) continue;
    if (benchmark.value("error_occurred", false)) fail(fmt::format("{}: {} failed", path, name));
    if (benchmark.value("run_type", "iteration") == "iteration") {
      runs[name].push_back(milliseconds(benchmark));
    } else if (benchmark.value("aggregate_name", "") == "median") {
      medians[name] = {milliseconds(benchmark)};
    }
  }
  runs.merge(medians);
  return runs;
}

Times read_ours(const std::string& path) {
  Case c;
  Times ours;
  for (const auto& [name, times] : read_runs(path, [&](const auto& n) { return parse(n, c); })) {
    parse(name, c);
    // Eager autograd keeps what kv_and_qkv keeps: backward is compared with that.
    if (c.pass == "bwd" && c.op == "flao") continue;
    if (c.pass == "bwd" && c.op == "flao_keep_kv_and_qkv") c.op = "flao";
    ours[c].insert(ours[c].end(), times.begin(), times.end());
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

/// Ratios of another time to ours: above 1 ours is faster.
class Ratios {
 public:
  double add(const std::string& name, double ours, double other) {
    const double ratio = other / ours;
    if (!(ratio > 0) || !std::isfinite(ratio)) fail(name + ": a time is not positive");
    logarithms_ += std::log(ratio);
    ++count_;
    return ratio;
  }
  int count() const { return count_; }
  double mean() const { return std::exp(logarithms_ / count_); }

 private:
  double logarithms_ = 0;
  int count_ = 0;
};

void compare(const Times& ours, const PeerTimes& peers) {
  constexpr const char* row = "{:<44} {:>9} {:>9}  {:<14} {:>6}{}\n";
  fmt::print(row, "case", "ours ms", "peer ms", "fastest peer", "ratio", "");
  Ratios ratios;
  int slower = 0;
  for (const auto& [c, times] : ours) {
    const auto peer = peers.find(c);
    if (peer == peers.end()) continue;
    const double ms = median(times);
    const Fastest best = fastest_of(peer->second);
    const double ratio = ratios.add(c.text(), ms, best.ms);
    slower += ratio < 1;
    fmt::print(row, c.text(), fmt::format("{:.3f}", ms), fmt::format("{:.3f}", best.ms), best.peer,
               fmt::format("{:.2f}", ratio), ratio < 1 ? "  SLOWER" : "");
  }
  print_missing("ours, without a peer:", ours, peers);
  print_missing("peers, without ours:", peers, ours);
  if (ratios.count() == 0) fail("no case of ours has a peer");
  fmt::print("\n{} rows, {} slower than the fastest peer\n", ratios.count(), slower);
  fmt::print("geometric mean of the ratios: {:.3f}\n", ratios.mean());
}

/// Two runs on one machine differ by some percent: what is less is not called slower.
constexpr double slack = 0.05;

void compare_runs(const Runs& now, const Runs& before) {
  constexpr const char* row = "{:<56} {:>10} {:>10} {:>6}{}\n";
  fmt::print(row, "benchmark", "now ms", "before ms", "ratio", "");
  Ratios ratios;
  int slower = 0;
  for (const auto& [name, times] : now) {
    const auto earlier = before.find(name);
    if (earlier == before.end()) continue;
    const double ms = median(times), earlier_ms = median(earlier->second);
    const double ratio = ratios.add(name, ms, earlier_ms);
    const bool is_slower = ratio < 1 - slack;
    slower += is_slower;
    fmt::print(row, name, fmt::format("{:.4g}", ms), fmt::format("{:.4g}", earlier_ms),
               fmt::format("{:.2f}", ratio), is_slower ? "  SLOWER" : "");
  }
  print_missing("now, not in the baseline:", now, before);
  print_missing("in the baseline, not now:", before, now);
  if (ratios.count() == 0) fail("the two runs have no benchmark in common");
  fmt::print("\n{} rows, {} slower by more than {:.0f} %\n", ratios.count(), slower, 100 * slack);
  fmt::print("geometric mean of the ratios: {:.3f}\n", ratios.mean());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool asked = arguments == std::vector<std::string>{"--help"};
  const bool baseline = arguments.size() == 3 && arguments[1] == "--baseline";
  const bool any_option = std::any_of(arguments.begin(), arguments.end(),
                                      [](const std::string& a) { return a.starts_with("--"); });
  if (!baseline && (arguments.size() < 2 || any_option)) {
    fmt::print(asked ? stdout : stderr,
               "usage: bench/compare OURS.json PEERS.jsonl...\n"
               "       bench/compare OURS.json --baseline EARLIER.json\n"
               "OURS.json and EARLIER.json are what quipu-bench --benchmark_out writes; a line of "
               "PEERS.jsonl has op, n, dtype, pass, peer and ms.\n");
    return asked ? 0 : 2;
  }
  try {
    if (baseline) {
      const auto every = [](const std::string&) { return true; };
      compare_runs(read_runs(arguments[0], every), read_runs(arguments[2], every));
      return 0;
    }
    PeerTimes peers;
    for (std::size_t i = 1; i < arguments.size(); ++i) read_peers(arguments[i], peers);
    compare(read_ours(arguments[0]), peers);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench/compare: {}\n", error.what());
    return 1;
  }
  return 0;
}
