#pragma once
// What was timed: runs of ours, as quipu-bench --benchmark_out writes them, and times of peers.
//
// A line of the peers is {"op", "n", "dtype", "pass", "peer", "ms"}, where `op` is our name with _
// for /; {"peer", "version"} alone says what the peer is. A time of null or NaN is no time.
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quipu::bench::report {

inline constexpr double unknown = NAN;

/// What is timed, named as the peers name it; our variants are parts of the name.
struct Case {
  std::string op, pass, dtype;
  std::int64_t n = 0;

  auto operator<=>(const Case&) const = default;
  std::string text() const;
};

/// One benchmark: medians over its repetitions. Shares of the limits are those of limits.h.
struct Timing {
  double ms = unknown;
  double bytes = unknown;  // that a call must read and write
  double flops = unknown;
  double of_copy = unknown, of_peak = unknown;

  /// The share of what binds: copies or multiply-adds.
  double of_limit() const { return std::fmax(of_copy, of_peak); }
};

/// Where and when; empty or 0 where the file does not say.
struct Machine {
  std::string quipu, date, processor, level, device;
  int threads = 0;
  std::int64_t cache = 0;     // bytes of the largest
  double copy = 0, peak = 0;  // bytes/s, f32 flop/s
};

struct Run {
  Machine machine;
  std::map<std::string, Timing> timings;        // by the benchmark's name
  std::map<std::string, std::string> left_out;  // and why: what needs more memory than there is
};

struct Peers {
  std::map<Case, std::map<std::string, double>> ms;  // by peer: the median
  std::map<std::string, std::string> versions;
};

/// Throws where the file is not what quipu-bench writes, or a benchmark failed.
Run read_run(const std::string& path);
Peers read_peers(const std::vector<std::string>& paths);

/// The benchmarks that peers could have. Eager autograd keeps what flao keeps with kv_and_qkv, so
/// that is its backward.
std::map<Case, Timing> cases_of(const Run& run);

double median(std::vector<double> values);

}  // namespace quipu::bench::report
