// Heat maps: one table for each dtype and pass, a row an operator, a column an n.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "page.h"
#include "quipu/core/report/html.h"

namespace quipu::bench::report {
namespace {

using quipu::detail::html_escape;

/// A figure of a row: its text, its colour from -1 (slower) over 0 to 1 (faster), and whether it is
/// marked as slower by more than its colour.
struct Shade {
  std::string text;
  double colour = 0;
  bool is_slower = false;
};

/// What a map shows of a row.
struct Quantity {
  double (*of)(const Row&);  // NaN: the row has none
  Shade (*shade)(double);
};

/// Full colour where it is `most` times faster or slower; blue and orange differ for every eye.
/// What is marked as slower does not read 1.00.
Shade ratio_shade(double ratio, double most, double slower_below) {
  const bool is_slower = ratio < slower_below;
  const int digits = is_slower && ratio >= 0.995 ? 4 : ratio < 9.995 ? 2 : ratio < 99.95 ? 1 : 0;
  return {fmt::format("{:.{}f}", ratio, digits),
          std::clamp(std::log(ratio) / std::log(most), -1.0, 1.0), is_slower};
}

Shade share_shade(double share) {
  return {fmt::format("{:.0f} %", 100 * share), std::clamp(2 * share - 1, -1.0, 1.0), false};
}

std::string cell(const Row& row, const Quantity& quantity) {
  const Shade shade = quantity.shade(quantity.of(row));
  return fmt::format("<td class=\"{}{}\" style=\"--a:{:.2f}\" title=\"{}: {:.4g} ms\">{}</td>",
                     shade.colour < 0 ? "less" : "more", shade.is_slower ? " slower" : "",
                     0.06 + 0.6 * std::abs(shade.colour), html_escape(row.c.text()), row.ours.ms,
                     shade.text);
}

/// One table, of the rows of one dtype and pass.
std::string map_of(const std::vector<const Row*>& rows, const std::string& title,
                   const Quantity& quantity) {
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
      html += found == by_size.end() ? "<td>–</td>" : cell(*found->second, quantity);
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string section(const std::string& title, const std::string& legend,
                    const Comparison& comparison, const Quantity& quantity) {
  std::map<std::pair<std::string, std::string>, std::vector<const Row*>> maps;
  for (const Row& row : comparison.rows) {
    if (!std::isnan(quantity.of(row))) maps[{row.c.dtype, row.c.pass}].push_back(&row);
  }
  if (maps.empty()) return "";
  std::string html =
      "<section><h2>" + title + "</h2>\n<p>" + legend + "</p>\n<div class=\"maps\">\n";
  for (const char* dtype : {"f64", "f32", "bf16", "f16"}) {
    for (const std::string pass : {"fwd", "bwd"}) {
      const auto found = maps.find({dtype, pass});
      if (found == maps.end()) continue;
      const std::string name = std::string(dtype) + (pass == "fwd" ? " forward" : " backward");
      html += map_of(found->second, name, quantity);
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
    html += section("Times faster than the fastest peer",
                    "The peer's time divided by ours: " + colours, comparison,
                    {[](const Row& row) { return row.to_peer(); },
                     [](double ratio) { return ratio_shade(ratio, 4, 1); }});
  }
  if (comparison.earlier) {
    const std::string date = comparison.earlier->machine.date;
    html += section(
        "Times faster than the baseline" + (date.empty() ? "" : " of " + html_escape(date)),
        "The earlier time divided by this one; what is slower by less than 5 % is not marked. " +
            colours,
        comparison,
        {[](const Row& row) { return row.to_earlier(); },
         [](double ratio) { return ratio_shade(ratio, 1.5, 1 - slack); }});
  }
  if (!html.empty()) return html;
  return section("Share of what the machine can do",
                 "Of the least time that copies and multiply-adds of the same size take: "
                 "<span class=\"more key\" style=\"--a:.66\">blue</span> is near it, "
                 "<span class=\"less key\" style=\"--a:.66\">orange</span> far from it.",
                 comparison, {[](const Row& row) { return row.ours.of_limit(); }, share_shade});
}

}  // namespace quipu::bench::report
