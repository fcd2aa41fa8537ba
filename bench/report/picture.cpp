#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "page.h"
#include "quipu/core/report/html.h"
#include "results.h"

namespace quipu::bench::report {
namespace {

using quipu::detail::html_escape;

constexpr int width = 860, left = 190, right = 64, top = 92, row_height = 29, bar = 10;

struct Bar {
  double logarithms = 0, least = INFINITY, most = 0;
  int count = 0;

  void add(double ratio) {
    logarithms += std::log(ratio);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    ++count;
  }
  double mean() const { return std::exp(logarithms / count); }
};

/// A logarithmic axis that has all bars, and 1.
struct Axis {
  double low = 0.7, high = 1.5;

  double x_of(double ratio) const {
    return left + std::log(ratio / low) / std::log(high / low) * (width - left - right);
  }
};

constexpr const char* style =
    "text{font:13px system-ui,\"Segoe UI\",Roboto,sans-serif;fill:#1c2330}.soft{fill:#5d6778}"
    ".title{font-size:17px;font-weight:600}.page{fill:#fff}.grid{stroke:#dfe3ea}"
    ".one{stroke:#1c2330;stroke-width:1.5}.fwd{fill:#0072b2}.bwd{fill:#c45500}"
    ".range{stroke:#5d6778}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ef}.soft{fill:#97a1b2}.page{fill:#12151b}"
    ".grid{stroke:#2c3340}.one{stroke:#e6e9ef}.fwd{fill:#56b4e9}.bwd{fill:#f0a030}"
    ".range{stroke:#97a1b2}}";

std::string text_at(double x, double y, const std::string& text, const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more,
                     html_escape(text));
}

int digits(double ratio) {
  return ratio < 9.95 ? 2 : 1;
}

std::string bar_svg(const Axis& axis, const Bar& bar_of, const std::string& pass, double y) {
  const double one = axis.x_of(1), end = axis.x_of(bar_of.mean());
  return fmt::format(
             "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\"/>"
             "<line class=\"range\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
             pass, std::min(one, end), y, std::abs(end - one), bar, axis.x_of(bar_of.least),
             axis.x_of(bar_of.most), y + bar / 2.0, y + bar / 2.0) +
         text_at(width - 14, y + bar, fmt::format("{:.{}f}", bar_of.mean(), digits(bar_of.mean())),
                 " text-anchor=\"end\" style=\"font-size:11px\"");
}

std::string axis_svg(const Axis& axis, int height) {
  std::string svg;
  const bool few = axis.high / axis.low > 100;  // no room for more
  for (const double tick :
       {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0}) {
    const bool is_power = std::abs(std::remainder(std::log10(tick), 1)) < 1e-9;
    if (tick < axis.low || tick > axis.high || (few && !is_power)) continue;
    svg += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>\n",
                       tick == 1 ? "one" : "grid", axis.x_of(tick), axis.x_of(tick), top - 4,
                       height - 12);
    svg += text_at(axis.x_of(tick), top - 10, fmt::format("{:g} ×", tick),
                   " text-anchor=\"middle\" class=\"soft\"");
  }
  return svg;
}

/// What the bars are means over, and where they are from.
std::string heading(const Comparison& comparison) {
  std::set<std::int64_t> sizes;
  std::set<std::string> dtypes;
  for (const Row& row : comparison.rows) {
    if (row.peer.empty()) continue;
    sizes.insert(row.c.n);
    dtypes.insert(row.c.dtype);
  }
  const Machine& m = comparison.now.machine;
  const std::string where =
      fmt::format("{}, {}, {} threads, {}; mean and range over n {} and {}", m.processor, m.level,
                  m.threads, m.date, fmt::join(sizes, ", "), fmt::join(dtypes, ", "));
  return text_at(14, 26, "Times faster than the fastest peer", " class=\"title\"") +
         text_at(14, 46, "of " + names_of_peers(comparison), " class=\"soft\"") +
         text_at(14, 64, where, " class=\"soft\"") +
         fmt::format("<rect class=\"fwd\" x=\"{}\" y=\"17\" width=\"12\" height=\"9\"/>", 640) +
         text_at(657, 26, "forward") +
         fmt::format("<rect class=\"bwd\" x=\"{}\" y=\"17\" width=\"12\" height=\"9\"/>", 735) +
         text_at(752, 26, "backward");
}

}  // namespace

std::string speed_svg(const Comparison& comparison) {
  std::map<std::string, std::map<std::string, Bar>> bars;
  Axis axis;
  for (const Row& row : comparison.rows) {
    if (row.peer.empty()) continue;
    bars[row.c.op][row.c.pass].add(row.to_peer());
    axis.low = std::min(axis.low, row.to_peer() / 1.05);
    axis.high = std::max(axis.high, row.to_peer() * 1.05);
  }
  if (bars.empty()) return "";
  const int height = top + row_height * static_cast<int>(bars.size()) + 16;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n<style>{3}</style>\n"
      "<rect class=\"page\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n",
      width, height, html_escape(how_it_stands(comparison)), style);
  svg += heading(comparison) + axis_svg(axis, height);
  double y = top;
  for (const auto& [op, by_pass] : bars) {
    svg += text_at(14, y + 17, op);
    for (const auto& [pass, bar_of] : by_pass) {
      const double middle = by_pass.size() == 1 ? 7 : pass == "fwd" ? 1 : 13;
      svg += bar_svg(axis, bar_of, pass, y + middle);
    }
    y += row_height;
  }
  return svg + "</svg>\n";
}

}  // namespace quipu::bench::report
