#pragma once
// The options of quipu-bench.
#include <optional>
#include <string>
#include <vector>

#include "operator_bench.h"

namespace quipu::bench {

struct Options {
  CaseChoice cases;
  bool only_operators = false;  // some were chosen: no other benchmarks
  std::vector<std::string> peers;
  std::string baseline, page, results;
  std::vector<std::string> google;  // Google Benchmark's own options

  /// Something is to be done with the times beside showing them.
  bool reports() const {
    return !peers.empty() || !baseline.empty() || !page.empty() || !results.empty();
  }
};

/// The status to end with instead, after --help or a mistake, which it has printed.
struct Ended {
  int status;
};
std::optional<Ended> parse_options(int argc, char** argv, Options& options);

}  // namespace quipu::bench
