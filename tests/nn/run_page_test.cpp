// The page of a run, and the charts on it.
#include <quipu/nn/train/chart.h>
#include <quipu/nn/train/run_page.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "support/pages.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::nn::detail;
using namespace quipu::testing;

namespace {

using Points = std::vector<std::pair<double, double>>;
constexpr double infinity = std::numeric_limits<double>::infinity();

RunFigures run_of(std::int64_t steps) {
  RunFigures run{.unit = "tokens",
                 .steps = steps,
                 .own_steps = steps,
                 .seconds = 75,
                 .median_seconds = 0.0112,
                 .mean_rate = 18234,
                 .peak = 4300000};
  for (std::int64_t i = 1; i <= steps; ++i) {
    run.history.push_back({.step = i,
                           .loss = 3 - static_cast<double>(i) / static_cast<double>(steps),
                           .lr = 1e-3,
                           .rate = 18000,
                           .memory = 2000000,
                           .peak = 4300000,
                           .seconds = static_cast<double>(i)});
  }
  return run;
}

}  // namespace

TEST_CASE("run page: says what a person wants to know, in one file") {
  const RunFacts facts{.title = "digits <test>",
                       .score_name = "accuracy",
                       .score = "97.98 %",
                       .parameters = 1234567,
                       .seed = 7,
                       .options = {{"--lr", "0.001"}, {"--text", "a & \"b\""}}};
  const std::string html = RunPage(facts, run_of(2000)).html();
  for (const char* part : {"<title>digits &lt;test&gt;</title>", "97.98 %", "1 234 567", "2 000",
                           "1:15", "11.2 ms", "18.2k", "4.10 MiB", "seed", ">7<", "--lr", "0.001",
                           "a &amp; &quot;b&quot;", "The loss went from", "prefers-color-scheme"}) {
    CAPTURE(std::string(part));
    CHECK(contains(html, part));
  }
  CHECK(count_of(html, "<svg") == 4);
  CHECK(tags_match(html));
  // Nothing is fetched, and nothing runs.
  for (const char* part : {"http", "src=", "href", "@import", "url(", "<script"}) {
    CAPTURE(std::string(part));
    CHECK_FALSE(contains(html, part));
  }
}

TEST_CASE("run page: the check of tags catches one that is left open") {
  CHECK(tags_match("<a><b x=\"1\"></b><c/></a>"));
  CHECK_FALSE(tags_match("<a><b></a></b>"));
  CHECK_FALSE(tags_match("<a>"));
}

TEST_CASE("run page: what is not known is left out") {
  RunFigures run = run_of(3);
  run.mean_rate = 0;
  for (StepRecord& r : run.history) {
    r.lr.reset();
    r.rate = 0;
  }
  const std::string html = RunPage({}, run).html();
  CHECK(count_of(html, "<svg") == 2);
  for (const char* part : {"Learning rate", "Speed", "seed", "parameters", "Options"}) {
    CHECK_FALSE(contains(html, part));
  }
  CHECK(tags_match(html));
}

TEST_CASE("run page: a run without steps, and one without any finite loss") {
  const std::string none = RunPage({}, {}).html();
  CHECK(contains(none, "nothing was recorded"));
  CHECK(tags_match(none));
  RunFigures run = run_of(5);
  for (StepRecord& r : run.history) r.loss = infinity;
  const std::string bad = RunPage({}, run).html();
  CHECK(contains(bad, "nothing was recorded"));
  CHECK_FALSE(contains(bad, "inf"));
  CHECK_FALSE(contains(bad, "nan"));
}

TEST_CASE("run page: sections can be added, and the file is written whole") {
  const TempDirectory directory;
  RunPage page({.title = "t"}, run_of(10));
  page.add_section("Memory over time", "<svg><rect/></svg>");
  const std::string path = directory.file("run.html");
  page.save(path);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK(text.str() == page.html());
  CHECK(contains(text.str(), "<h2>Memory over time</h2>"));
  CHECK(contains(text.str(), "<svg><rect/></svg>"));
  expect_error([&] { page.save(directory.file("none/run.html")); }, "none/run.html");
}

TEST_CASE("chart: a long series becomes a short path that keeps its spikes") {
  Points points;
  for (int i = 0; i < 100000; ++i) points.emplace_back(i, i == 54321 ? 100 : i % 7);
  const std::string svg = chart_svg({.series = {{points}}});
  CHECK(svg.size() < 60000);
  const std::string line = svg.substr(svg.find(" d=\""));
  // The spike reaches the top of the chart, but for the room above it.
  double highest = infinity;
  std::istringstream in(line.substr(4));
  for (std::string x, y; in >> x >> y && y.back() != '>';)
    highest = std::min(highest, std::stod(y));
  CHECK(highest < 30);
}

TEST_CASE("chart: one point, equal points, numbers that are not finite") {
  for (const Points& points :
       {Points{{1, 5}}, Points{{1, 0}}, Points{{1, 2}, {2, 2}, {3, 2}}, Points{{1, -3}, {2, -3}},
        Points{{1, 1e-300}, {2, 1e300}}, Points{{1, infinity}, {2, 1}, {3, std::nan("")}}}) {
    for (const bool zero : {false, true}) {
      const std::string svg = chart_svg({.series = {{points}}, .from_zero = zero});
      CHECK_FALSE(contains(svg, "nan"));
      CHECK_FALSE(contains(svg, "inf"));
      CHECK(contains(svg, "<path"));
    }
  }
  CHECK(contains(chart_svg({}), "nothing was recorded"));
  CHECK(
      contains(chart_svg({.series = {{{{1, -1}}}}, .logarithmic = true}), "nothing was recorded"));
}

TEST_CASE("chart: a logarithmic axis where values span much") {
  CHECK(wants_log_axis({{1, 60}, {2, 2}}));
  CHECK(wants_log_axis({{1, 60}, {2, infinity}, {3, 2}}));
  CHECK_FALSE(wants_log_axis({{1, 60}, {2, 3}}));
  CHECK_FALSE(wants_log_axis({{1, 60}, {2, 0}}));
  CHECK_FALSE(wants_log_axis({{1, 60}, {2, -1}}));
  CHECK_FALSE(wants_log_axis({}));
  const std::string svg =
      chart_svg({.series = {{{{1, 100}, {2, 1}, {3, 0.01}}}}, .logarithmic = true});
  for (const char* tick : {">100<", ">1<", ">0.01<"}) CHECK(contains(svg, tick));
}

TEST_CASE("chart: a logarithmic x axis has the ticks that it is given, and dots") {
  const Points points{{64, 1}, {256, 2}, {1024, std::nan("")}, {4096, 8}};
  const std::string svg = chart_svg(
      {.series = {{points, "ours", true}}, .logarithmic = true, .x_ticks = {64, 512, 4096}});
  for (const char* tick : {">64<", ">512<", ">4096<"}) CHECK(contains(svg, tick));
  CHECK(count_of(svg, "<circle") == 3);
  // 512 is in the middle between 64 and 4096.
  const auto x_of = [&](const std::string& tick) {
    const std::size_t text = svg.rfind("<text", svg.find(tick));
    return std::stod(svg.substr(svg.find("x=\"", text) + 3));
  };
  CHECK(std::abs(x_of(">512<") - (x_of(">64<") + x_of(">4096<")) / 2) <= 0.1);
}

TEST_CASE("chart: smoothing keeps straight lines and tames noise") {
  Points straight, noisy;
  for (int i = 0; i < 1000; ++i) {
    straight.emplace_back(i, 3.0 - 0.001 * i);
    noisy.emplace_back(i, 2 + (i % 2 == 0 ? 0.5 : -0.5));
  }
  const Points line = smoothed(straight, false), calm = smoothed(noisy, false);
  REQUIRE(line.size() == 1000);
  for (std::size_t i = 10; i < 990; ++i) {
    CHECK(std::abs(line[i].second - straight[i].second) <= 1e-12);
    CHECK(std::abs(calm[i].second - 2) <= 0.03);
  }
  CHECK(smoothed({{1, 5}, {2, infinity}, {3, 4}}, false) == Points{{1, 5}, {3, 4}});
  CHECK(smoothed({}, true).empty());
}

TEST_CASE("run page: whether it can be written is known before") {
  const TempDirectory directory;
  const std::string path = directory.file("run.html");
  RunPage::check_writable(path);
  CHECK(std::filesystem::is_empty(directory.path()));
  expect_error([&] { RunPage::check_writable(directory.file("none/run.html")); }, "none/run.html");
  expect_error([&] { RunPage::check_writable(directory.path().string()); }, "not a regular file");
}
