// Heat maps: one table for each dtype and pass, a row an operator, a column an n.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "page.h"
#include "quipu/core/report/html.h"

namespace quipu::bench {
namespace {

using quipu::detail::html_escape;

/// A figure of a row: its text, and its colour from -1 (slower) over 0 to 1 (faster).
struct Shade {
  std::string text;
  double colour = 0;
};
using Shader = std::function<Shade(const Row&)>;

/// Full colour at a fourth and four times; blue and orange differ for every eye. What is slower
/// does not read 1.00.
Shade ratio_shade(double ratio) {
  const int digits = ratio >= 0.995 && ratio < 1 ? 4 : ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
  return {fmt::format("{:.{}f}", ratio, digits), std::clamp(std::log2(ratio) / 2, -1.0, 1.0)};
}

Shade share_shade(double share) {
  return {fmt::format("{:.0f} %", 100 * share), std::clamp(2 * share - 1, -1.0, 1.0)};
}

std::string cell(const Row& row, const Shader& shader, bool marks_slower) {
  const Shade shade = shader(row);
  const bool slower = shade.colour < 0;
  return fmt::format("<td class=\"{}{}\" style=\"--a:{:.2f}\" title=\"{}: {:.4g} ms\">{}</td>",
                     slower ? "less" : "more", slower && marks_slower ? " slower" : "",
                     0.06 + 0.6 * std::abs(shade.colour), html_escape(row.c.text()), row.ours.ms,
                     shade.text);
}

/// The rows of one dtype and pass that the map knows a figure of.
std::string map_of(const std::vector<const Row*>& rows, const std::string& title,
                   const Shader& shader, bool marks_slower) {
  std::set<std::int64_t> sizes;
  std::map<std::string, std::map<std::int64_t, const Row*>> grid;
  for (const Row* row : rows) {
    sizes.insert(row->c.n);
    grid[row->c.op][row->c.n] = row;
  }
  std::string html = "<div class=\"map\"><h3>" + title + "</h3>\n<table>\n<tr><th>n</th>";
  for (const std::int64_t n : sizes) html += fmt::format("<th>{}</th>", n);
  html += "</tr>\n";
  for (const auto& [op, by_size] : grid) {
    html += "<tr><th>" + html_escape(op) + "</th>";
    for (const std::int64_t n : sizes) {
      const auto found = by_size.find(n);
      html += found == by_size.end() ? "<td>–</td>" : cell(*found->second, shader, marks_slower);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string section(const std::string& title, const std::string& legend,
                    const Comparison& comparison, const Shader& shader, bool marks_slower,
                    double (*figure)(const Row&)) {
  std::map<std::pair<std::string, std::string>, std::vector<const Row*>> maps;
  for (const Row& row : comparison.rows) {
    if (!std::isnan(figure(row))) maps[{row.c.dtype, row.c.pass}].push_back(&row);
  }
  if (maps.empty()) return "";
  std::string html =
      "<section><h2>" + title + "</h2>\n<p>" + legend + "</p>\n<div class=\"maps\">\n";
  for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
    for (const std::string pass : {"fwd", "bwd"}) {
      const auto found = maps.find({dtype, pass});
      if (found == maps.end()) continue;
      const std::string name = std::string(dtype) + (pass == "fwd" ? " forward" : " backward");
      html += map_of(found->second, name, shader, marks_slower);
    }
  }
  return html + "</div></section>\n";
}

}  // namespace

std::string heat_maps(const Comparison& comparison) {
  std::string html;
  const std::string colours =
      "<span class=\"more key\" style=\"--a:.66\">blue</span> is faster, "
      "<span class=\"less key slower\" style=\"--a:.66\">orange ▾</span> slower.";
  if (comparison.peers) {
    html += section(
        "Times faster than the fastest peer", "The peer's time divided by ours: " + colours,
        comparison, [](const Row& row) { return ratio_shade(row.to_peer()); }, true,
        [](const Row& row) { return row.to_peer(); });
  }
  if (comparison.earlier) {
    const std::string date = comparison.earlier->machine.date;
    html += section(
        "Times faster than the baseline" + (date.empty() ? "" : " of " + html_escape(date)),
        "The earlier time divided by this one: " + colours, comparison,
        [](const Row& row) { return ratio_shade(row.to_earlier()); }, true,
        [](const Row& row) { return row.to_earlier(); });
  }
  if (!html.empty()) return html;
  return section(
      "Share of what the machine can do",
      "Of the least time that copies and multiply-adds of the same size take: "
      "<span class=\"more key\" style=\"--a:.66\">blue</span> is near it, "
      "<span class=\"less key\" style=\"--a:.66\">orange</span> far from it.",
      comparison, [](const Row& row) { return share_shade(row.ours.of_limit()); }, false,
      [](const Row& row) { return row.ours.of_limit(); });
}

}  // namespace quipu::bench
