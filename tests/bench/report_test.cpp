// What is made of times: comparisons, pages, pictures and the figures of bench/results.
#include <fmt/format.h>
#include <page.h>
#include <results.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/pages.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::bench;
using namespace quipu::bench::report;
using namespace quipu::testing;

namespace {

constexpr const char* context = R"("context": {"date": "2030-01-02T03:04:05+00:00",
  "caches": [{"type": "Data", "level": 1, "size": 1000}, {"level": 3, "size": 1000000}],
  "quipu": "0.1.0", "processor": "Quick <& Sons>", "cpu_level": "v4", "threads": "2",
  "device": "cpu"})";

/// A row as Google Benchmark writes it; a copy of 1 GB takes a second, and so do 1e9 operations.
std::string benchmark(const std::string& name, double ms, double bytes, double flops = 1) {
  const double seconds = ms * 1e-3;
  return fmt::format(
      R"({{"name": "{0}", "run_type": "iteration", "real_time": {1}, "time_unit": "ms",
      "bytes/s": {2}, "flop/s": {3}, "of_copy": {4}, "of_peak": {5}}})",
      name, ms, bytes / seconds, flops / seconds, bytes / seconds * 1e-9, flops / seconds * 1e-9);
}

std::string run_text(const std::vector<std::string>& rows) {
  return fmt::format("{{{}, \"benchmarks\": [{}]}}", context, fmt::join(rows, ",\n"));
}

std::string written(const TempDirectory& directory, const char* name, const std::string& text) {
  const std::string path = directory.file(name);
  std::ofstream(path) << text;
  return path;
}

const std::vector<std::string> ours{benchmark("act/silu/fwd/f32/n:256/cpu", 2, 1e6),
                                    benchmark("act/silu/fwd/f32/n:512/cpu", 4, 2e6),
                                    benchmark("act/silu/bwd/f32/n:256/cpu", 5, 4e6),
                                    benchmark("flao/fwd/bf16/n:256/cpu", 8, 1e6, 6e6),
                                    benchmark("gelu/fwd/f16/n:256/cpu", 1, 1e5),
                                    benchmark("add/f32/n:4096/cpu", 1, 1e5)};

constexpr const char* peers = R"({"peer": "torch", "version": "2.15.0"}
{"op": "act_silu", "n": 256, "dtype": "f32", "pass": "fwd", "peer": "torch", "ms": 6.5}
{"op": "act_silu", "n": 512, "dtype": "f32", "pass": "fwd", "peer": "torch", "ms": NaN}
{"op": "act_silu", "n": 256, "dtype": "f32", "pass": "bwd", "peer": "torch", "ms": 4}
{"op": "flao", "n": 256, "dtype": "bf16", "pass": "fwd", "peer": "torch", "ms": 20}
{"op": "flao", "n": 256, "dtype": "bf16", "pass": "fwd", "peer": "jax_jit", "ms": 16}
{"op": "alone", "n": 256, "dtype": "bf16", "pass": "fwd", "peer": "jax_jit", "ms": null}
{"op": "theirs", "n": 256, "dtype": "bf16", "pass": "fwd", "peer": "jax_jit", "ms": 1}
)";

Comparison with_peers(const std::vector<std::string>& rows = ours) {
  const TempDirectory directory;
  return compare(read_run(written(directory, "ours.json", run_text(rows))),
                 read_peers({written(directory, "peers.jsonl", peers)}), {});
}

Comparison with_baseline(const std::vector<std::string>& now,
                         const std::vector<std::string>& before) {
  const TempDirectory directory;
  return compare(read_run(written(directory, "now.json", run_text(now))), {},
                 read_run(written(directory, "before.json", run_text(before))));
}

void check_page(const std::string& html) {
  CHECK(tags_match(html));
  for (const char* part : {"nan", "inf<", "http://", "https://", "<script", "src="}) {
    CAPTURE(part);
    CHECK_FALSE(contains(html, part));
  }
}

}  // namespace

TEST_CASE("bench page: a sentence, a heat map of ratios, curves with limits, tables") {
  const std::string html = page_html(with_peers());
  check_page(html);
  CHECK(contains(html,
                 "2 of 3 rows are faster than the fastest peer, geometric mean 1.73 ×; slowest: "
                 "act_silu bwd f32 n:256, 0.80 ×."));
  for (const char* part :
       {"Quick &lt;&amp; Sons&gt; · instructions v4 · 2 threads · copies 1.0 GB/s", "quipu 0.1.0",
        "peers jax_jit, torch (torch 2.15.0)", "2030-01-02", "<h3>f32 forward</h3>",
        "<h3>f32 backward</h3>", "<h3>bf16 forward</h3>", "n:256: 2 ms\">3.25</td>",
        "n:256: 8 ms\">2.00</td>", "<b>act_silu</b> copies", "1 of the peers' cases without ours",
        "1 other benchmarks"}) {
    CAPTURE(part);
    CHECK(contains(html, part));
  }
  // The slower row is marked by more than its colour, and the only one.
  CHECK(count_of(html, "<td class=\"less slower\"") == 1);
  CHECK(contains(html, "n:256: 5 ms\">0.80</td>"));
  // What no peer has is in the tables alone.
  CHECK_FALSE(contains(html, "<h3>f16 forward</h3>"));
  CHECK(contains(html, "<td>gelu fwd f16 n:256</td>"));
  // Forward has two sizes, one of which has no partner, and so one dot of a peer.
  CHECK(count_of(html, "<g class=\"fwd peer\"") == 1);
  CHECK(count_of(html, "<path class=\"fwd limit\"") == 2);  // a chart and the legend
}

TEST_CASE("bench page: without peers it is about the limits of the machine") {
  const TempDirectory directory;
  const Comparison alone =
      compare(read_run(written(directory, "ours.json", run_text(ours))), {}, {});
  const std::string html = page_html(alone);
  check_page(html);
  CHECK(contains(html,
                 "The median of 5 rows reaches 50 % of what copies and multiply-adds allow at "
                 "best; furthest from it: gelu fwd f16 n:256, 10 %."));
  CHECK(contains(html, "n:256: 8 ms\">75 %</td>"));
  CHECK(speed_svg(alone).empty());
}

TEST_CASE("bench page: rows that are slower than the baseline are marked") {
  std::vector<std::string> before = ours;
  before[0] = benchmark("act/silu/fwd/f32/n:256/cpu", 1.5, 1e6);
  before[2] = benchmark("act/silu/bwd/f32/n:256/cpu", 4.9, 4e6);
  before.erase(before.begin() + 3);
  const Comparison comparison = with_baseline(ours, before);
  const std::string html = page_html(comparison);
  check_page(html);
  CHECK(contains(html, "1 of 4 rows is slower than the baseline by more than 5 %"));
  CHECK(contains(html, "Times faster than the baseline of 2030-01-02"));
  CHECK(contains(html, "n:256: 2 ms\">0.75</td>"));
  CHECK(tally_earlier(comparison).slower == 1);
  CHECK(contains(html, "n:256: 5 ms\">0.98</td>"));  // within what two runs differ by
  CHECK(count_of(html, "<td class=\"less slower\"") == 1);
}

TEST_CASE("bench page: a time that is not there, and one that cannot be") {
  const TempDirectory directory;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::string> rows = ours;
  rows.push_back(benchmark("act/relu/fwd/f32/n:256/cpu", 2, nan, nan));  // Google writes NaN
  rows.push_back(R"({"name": "act/relu/fwd/f32/n:32768/cpu", "error_occurred": true,
                     "error_message": "needs 30 GiB of memory, 20 GiB are available"})");
  const Comparison comparison = with_peers(rows);
  check_page(page_html(comparison));
  CHECK(contains(page_html(comparison), "needs 30 GiB of memory"));
  rows.back() = benchmark("act/relu/fwd/f32/n:512/cpu", 0, 1);
  expect_error<std::runtime_error>([&] { with_peers(rows); },
                                   "act/relu/fwd/f32/n:512/cpu: a time is not positive");
  rows.back() = R"({"name": "act/relu/fwd/f32/n:512/cpu", "error_occurred": true})";
  expect_error<std::runtime_error>([&] { with_peers(rows); }, "act/relu/fwd/f32/n:512/cpu failed");
}

TEST_CASE("bench page: time per element beyond the cache") {
  // The cache holds 1 MB: 2 MB and more are beyond it.
  std::vector<std::string> rows;
  for (const auto& [n, ms] : {std::pair{1, 9.0}, {4, 4.0}, {8, 8.0}, {16, 20.0}}) {
    rows.push_back(benchmark(fmt::format("act/silu/fwd/f32/n:{}/cpu", n), ms, n * 1e6));
    // Its multiply-adds grow as n²: nothing is said of it.
    rows.push_back(
        benchmark(fmt::format("attention/full/fwd/f32/n:{}/cpu", n), ms * n, n * 1e6, 1e6 * n * n));
  }
  const auto flat = flatness_of(with_baseline(rows, rows));
  REQUIRE(flat);
  CHECK(std::abs(flat->factor - 1.25) <= 1e-9);
  CHECK(flat->text == "act_silu fwd f32, n 16 beside 4");
  CHECK_FALSE(flatness_of(with_baseline(ours, ours)));
}

TEST_CASE("bench results: figures, page and picture, named after the machine") {
  const TempDirectory directory;
  const std::string folder = directory.file("results");
  save_results(with_peers(), folder);
  const std::filesystem::path stem = std::filesystem::path(folder) / "quick-sons-v4-2-threads";
  const auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const nlohmann::json json = nlohmann::json::parse(read(stem.string() + ".json"));
  CHECK(json["peers"]["torch"] == "2.15.0");
  CHECK(json["date"] == "2030-01-02");
  REQUIRE(json["rows"].size() == 5);
  CHECK(json["rows"][1]["ratio"] == 3.25);
  CHECK_FALSE(json["rows"][2].contains("ratio"));
  check_page(read(stem.string() + ".html"));
  const std::string svg = read(folder + "/speed.svg");
  CHECK(tags_match(svg));
  CHECK(contains(svg, "<svg xmlns="));
  for (const char* part : {">act_silu<", ">flao<", ">3.25<", ">0.80<", "class=\"one\""}) {
    CAPTURE(part);
    CHECK(contains(svg, part));
  }
}
