#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quipu/core/parallel.h"
#include "tables.h"

namespace quipu::bench {
namespace {

std::string number(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.6f}", value);
}

std::string measured_on(const Comparison& c) {
  if (!c.predicted_for.empty()) return "no device, but predicted for " + c.predicted_for;
  std::string text = to_string(c.device);
  if (c.published->kind == Kind::speed && c.device.is_cpu()) {
    text += fmt::format(", {} threads", num_threads());
  }
  return text;
}

/// Names of all columns: the axis, ours, the published ones, what else a prediction has.
std::vector<std::string> column_names(const Comparison& c) {
  std::vector<std::string> names{c.published->axis};
  for (const Variant& v : c.variants) names.push_back(v.column);
  names.insert(names.end(), c.published->columns.begin(), c.published->columns.end());
  if (!c.predicted_for.empty()) names.insert(names.end(), {"best_published", "byte_limit"});
  return names;
}

std::vector<std::string> cells_of(const Comparison& c, const Comparison::Row& row) {
  const PublishedTable::Row& published = c.published->rows[row.index];
  std::vector<std::string> cells{std::to_string(published.n)};
  for (const double value : row.ours) cells.push_back(number(value));
  for (const double value : published.values) cells.push_back(number(value));
  if (!c.predicted_for.empty()) {
    cells.push_back(number(c.published->best(row.index)));
    cells.push_back(number(row.limit));
  }
  return cells;
}

/// Our first column as a share of the best published one.
std::string share_of_best(const Comparison& c, const Comparison::Row& row) {
  if (std::isnan(row.ours[0])) return "-";
  return fmt::format("{:.1f} %", 100 * row.ours[0] / c.published->best(row.index));
}

std::string heading(const Comparison& c) {
  return fmt::format("{}: ours on {}; the others as published, measured on {}; {}",
                     c.published->name, measured_on(c), c.published->device,
                     c.published->kind == Kind::memory ? "MiB" : "ms");
}

std::string legend(const Comparison& c) {
  std::string text;
  for (const Variant& v : c.variants) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", v.column, v.meaning);
  }
  return text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return out;
}

std::string html_table(const Comparison& c) {
  const std::size_t ours = c.variants.size();
  std::string out = fmt::format("<h2>{}</h2>\n<p>Ours on {}, published on {}, in {}. {}.</p>\n",
                                c.published->name, measured_on(c), c.published->device,
                                c.published->kind == Kind::memory ? "MiB" : "ms", legend(c));
  out += "<table>\n<tr>";
  const std::vector<std::string> names = column_names(c);
  for (std::size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<th{}>{}</th>", i > 0 && i <= ours ? " class=ours" : "", names[i]);
  }
  out += "<th>ours / best</th></tr>\n";
  for (const Comparison::Row& row : c.rows) {
    const std::vector<std::string> cells = cells_of(c, row);
    out += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool best =
          i > ours && i - ours <= c.published->columns.size() &&
          c.published->rows[row.index].values[i - ours - 1] == c.published->best(row.index);
      out += fmt::format("<td{}>{}</td>",
                         i > 0 && i <= ours ? " class=ours"
                         : best             ? " class=best"
                                            : "",
                         cells[i]);
    }
    out += fmt::format("<td>{}</td></tr>\n", share_of_best(c, row));
  }
  out += "</table>\n";
  for (const std::string& note : c.notes) out += fmt::format("<p>{}</p>\n", escaped(note));
  return out;
}

constexpr const char* style = R"(<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1rem; margin: 2rem 0 0; overflow-wrap: anywhere; }
p { margin: .3rem 0; opacity: .8; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { text-align: right; padding: .1rem .7rem; border-bottom: 1px solid #8884; }
.ours { background: #2a7f6233; font-weight: 600; }
.best { text-decoration: underline; }
</style>
)";

}  // namespace

std::string as_text(const Comparison& c) {
  std::vector<std::vector<std::string>> lines{column_names(c)};
  lines.front().push_back("ours/best");
  for (const Comparison::Row& row : c.rows) {
    lines.push_back(cells_of(c, row));
    lines.back().push_back(share_of_best(c, row));
  }
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out = heading(c) + "\n" + legend(c) + "\n";
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      out += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", line[i], widths[i]);
    }
    out += "\n";
  }
  for (const std::string& note : c.notes) out += note + "\n";
  return out;
}

std::string as_csv(const Comparison& c) {
  std::string out = "# " + heading(c) + "\n";
  if (!c.predicted_for.empty()) out += "# " + how_predicted() + "\n";
  for (const std::string& note : c.notes) out += "# " + note + "\n";
  const auto add = [&](const std::vector<std::string>& cells) {
    out += fmt::format("{}\n", fmt::join(cells, ","));
  };
  add(column_names(c));
  for (const Comparison::Row& row : c.rows) add(cells_of(c, row));
  return out;
}

std::string as_html(const std::vector<Comparison>& comparisons) {
  std::string out =
      "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Quipu: tables</title>\n";
  out += style;
  out +=
      "<h1>Published tables, and ours</h1>\n<p>Ours are the shaded columns; the best published "
      "figure of a row is underlined.</p>\n";
  const auto predicted = [](const Comparison& c) { return !c.predicted_for.empty(); };
  if (std::any_of(comparisons.begin(), comparisons.end(), predicted)) {
    out += "<p>" + how_predicted() + "</p>\n";
  }
  for (const Comparison& c : comparisons) out += "<div>\n" + html_table(c) + "</div>\n";
  return out + "</html>\n";
}

}  // namespace quipu::bench
