// quipu-compare: what quipu-bench makes of a run, from files: our times beside the fastest peer's,
// or beside those of an earlier run, row by row, and as a page.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "report/comparison.h"
#include "report/page.h"
#include "report/results.h"

namespace {

using namespace quipu::bench;
using namespace quipu::bench::report;

struct Options {
  std::string ours, baseline, page, results;
  std::vector<std::string> peers;
};

constexpr const char* usage =
    "usage: bench/compare OURS.json PEERS.jsonl... [--baseline EARLIER.json] [--page FILE]\n"
    "       bench/compare OURS.json --baseline EARLIER.json [--page FILE]\n"
    "       bench/compare OURS.json --page FILE\n"
    "OURS.json and EARLIER.json are what quipu-bench --benchmark_out writes; a line of PEERS.jsonl "
    "has op, n, dtype, pass, peer and ms. --results FOLDER writes page, figures and a picture, "
    "named after the machine.\n";

void run(const Options& options) {
  std::optional<Peers> peers;
  std::optional<Run> earlier;
  if (!options.peers.empty()) peers = read_peers(options.peers);
  if (!options.baseline.empty()) earlier = read_run(options.baseline);
  const Comparison comparison =
      compare(read_run(options.ours), std::move(peers), std::move(earlier));
  if (comparison.peers) print_peers(comparison);
  if (comparison.earlier) print_earlier(comparison);
  if (!options.page.empty()) save_page(comparison, options.page);
  if (!options.results.empty()) save_results(comparison, options.results);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app;
  app.add_option("ours", options.ours)->required();
  app.add_option("peers", options.peers);
  app.add_option("--baseline", options.baseline);
  app.add_option("--page", options.page);
  app.add_option("--results", options.results);
  try {
    app.parse(argc, argv);
    if (options.peers.empty() && options.baseline.empty() && options.page.empty() &&
        options.results.empty()) {
      throw CLI::ValidationError("nothing to compare with");
    }
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", usage);
    return 0;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "bench/compare: {}\n{}", error.what(), usage);
    return 2;
  }
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench/compare: {}\n", error.what());
    return 1;
  }
  return 0;
}
