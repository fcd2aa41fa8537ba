// Time over n, both logarithmic: one chart for each operator and dtype, with forward, backward, the
// fastest peer of each, and the time that the limits of the machine allow at best.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "page.h"
#include "quipu/core/report/html.h"
#include "quipu/nn/train/chart.h"

namespace quipu::bench::report {
namespace {

using nn::detail::Chart;
using nn::detail::ChartSeries;
using quipu::detail::html_escape;

/// The rows of one operator and dtype.
using Curve = std::vector<const Row*>;

const char* limit_of(const Row& row) {
  return row.ours.of_copy >= row.ours.of_peak ? "copies" : "multiply-adds";
}

/// From the largest size down, those that leave room for their text.
std::vector<double> few_ticks(std::vector<double> sizes) {
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  const double apart = std::pow(sizes.front() / sizes.back(), 0.2);
  std::vector<double> kept{sizes.front()};
  for (const double n : sizes) {
    if (n < kept.back() && n * apart <= kept.back()) kept.push_back(n);
  }
  std::reverse(kept.begin(), kept.end());
  return kept;
}

std::string chart_of(const std::string& op, const std::string& dtype, const Curve& rows) {
  Chart chart{.width = 330,
              .height = 210,
              .logarithmic = true,
              .label = html_escape(op + " " + dtype + ": milliseconds over n")};
  std::set<std::string> limits;  // of forward and backward
  for (const std::string pass : {"fwd", "bwd"}) {
    ChartSeries ours{.style = pass, .dots = true}, peer{.style = pass + " peer", .dots = true},
        limit{.style = pass + " limit"};
    const Row* largest = nullptr;
    for (const Row* row : rows) {
      if (row->c.pass != pass) continue;
      const auto n = static_cast<double>(row->c.n);
      ours.points.emplace_back(n, row->ours.ms);
      peer.points.emplace_back(n, row->peer_ms);
      limit.points.emplace_back(n, row->ours.ms * row->ours.of_limit());
      chart.x_ticks.push_back(n);
      largest = row;
    }
    if (largest == nullptr) continue;
    for (ChartSeries* series : {&limit, &peer, &ours}) chart.series.push_back(std::move(*series));
    if (std::isnan(largest->ours.of_limit())) continue;
    limits.insert(limit_of(*largest));
  }
  chart.x_ticks = few_ticks(std::move(chart.x_ticks));
  return "<figure><figcaption><b>" + html_escape(op) + "</b> " +
         fmt::format("{}", fmt::join(limits, ", ")) + "</figcaption>\n" + chart_svg(chart) +
         "</figure>\n";
}

bool has_two_sizes(const Curve& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [&](const Row* row) { return row->c.n != rows.front()->c.n; });
}

constexpr const char* legend = R"html(<p class="legend">
<span><svg viewBox="0 0 28 10"><path class="fwd" d="M0 5 L28 5"/></svg>forward</span>
<span><svg viewBox="0 0 28 10"><path class="bwd" d="M0 5 L28 5"/></svg>backward</span>
<span><svg viewBox="0 0 28 10"><path class="fwd peer" d="M0 5 L28 5"/></svg>the fastest peer</span>
<span><svg viewBox="0 0 28 10"><path class="fwd limit" d="M0 5 L28 5"/></svg>what this
machine allows at best, by copies or by multiply-adds, as it says beside the name</span></p>
)html";

}  // namespace

std::string curves(const Comparison& comparison) {
  std::map<std::string, std::map<std::string, Curve>> by_dtype;
  for (const Row& row : comparison.rows) by_dtype[row.c.dtype][row.c.op].push_back(&row);
  std::string html;
  for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
    std::string charts;
    for (const auto& [op, rows] : by_dtype[dtype]) {
      if (has_two_sizes(rows)) charts += chart_of(op, dtype, rows);
    }
    if (charts.empty()) continue;
    // The first type is open: the others look much the same.
    html +=
        fmt::format("<details{}><summary>{}</summary><div class=\"charts\">\n{}</div></details>\n",
                    html.empty() ? " open" : "", dtype, charts);
  }
  if (html.empty()) return "";
  return std::string("<section><h2>Milliseconds over n</h2>\n") + legend + html + "</section>\n";
}

}  // namespace quipu::bench::report
