#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quipu/core/report/html.h"
#include "quipu/core/threads/parallel.h"
#include "tables.h"

namespace quipu::bench {
namespace {

constexpr double tie = 0.02;  // predictions that differ by less tell nothing

std::string number(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.6f}", value);
}

bool is_predicted(const Comparison& c) {
  return !c.predicted_for.empty();
}

/// "on cpu, 2 threads", "predicted for H100 SXM, not measured"
std::string where_ours(const Comparison& c) {
  if (is_predicted(c)) return "predicted for " + c.predicted_for + ", not measured";
  std::string text = "on " + to_string(c.device);
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
  if (is_predicted(c)) names.insert(names.end(), {"best_published", "byte_limit"});
  return names;
}

std::vector<std::string> cells_of(const Comparison& c, const Comparison::Row& row) {
  const PublishedTable::Row& published = c.published->rows[row.index];
  std::vector<std::string> cells{std::to_string(published.n)};
  for (const double value : row.ours) cells.push_back(number(value));
  for (const double value : published.values) cells.push_back(number(value));
  if (is_predicted(c)) {
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
  return fmt::format("{}: ours {}; the others as published, measured on {}; {}", c.published->name,
                     where_ours(c), c.published->device,
                     c.published->kind == Kind::memory ? "MiB" : "ms");
}

std::string legend(const Comparison& c) {
  std::string text;
  for (const Variant& v : c.variants) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", v.column, v.meaning);
  }
  return text;
}

std::string html_table(const Comparison& c) {
  const std::size_t ours = c.variants.size();
  std::string out = fmt::format("<h2>{}</h2>\n<p>Ours {}; published on {}; in {}. {}.</p>\n",
                                c.published->name, where_ours(c), c.published->device,
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
  for (const std::string& note : c.notes)
    out += fmt::format("<p>{}</p>\n", quipu::detail::html_escape(note));
  return out;
}

/// One line a table: its largest row.
struct Largest {
  std::string table, n, ours, best, share, limit_share;
};
std::vector<Largest> largest_rows(const std::vector<Comparison>& comparisons) {
  std::vector<Largest> lines;
  for (const Comparison& c : comparisons) {
    if (c.rows.empty()) continue;
    const Comparison::Row& row = c.rows.back();
    const bool known = row.ours[0] > 0 && row.limit > 0;
    lines.push_back({c.published->name, std::to_string(c.published->rows[row.index].n),
                     number(row.ours[0]), number(c.published->best(row.index)),
                     share_of_best(c, row),
                     known ? fmt::format("{:.1f} %", 100 * row.limit / row.ours[0]) : "-"});
  }
  return lines;
}

std::string html_summary(const std::vector<Comparison>& comparisons) {
  std::string out =
      "<h2>Largest rows</h2>\n<div><table>\n<tr><th class=name>table</th><th>n</th>"
      "<th class=ours>predicted</th><th>best published</th><th>ours / best</th>"
      "<th>of the byte limit</th></tr>\n";
  for (const Largest& l : largest_rows(comparisons)) {
    out += fmt::format(
        "<tr><td class=name>{}</td><td>{}</td><td class=ours>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        l.table, l.n, l.ours, l.best, l.share, l.limit_share);
  }
  return out + "</table></div>\n";
}

constexpr const char* style = R"css(
body { max-width: 76rem; }
h2 { margin: 2rem 0 0; overflow-wrap: anywhere; }
p { margin: .3rem 0; opacity: .8; }
div { overflow-x: auto; }
td, th { text-align: right; padding: .1rem .7rem; border-bottom: 1px solid var(--grid); }
.name { text-align: left; }
.ours { background: #2a7f6233; font-weight: 600; }
.best { text-decoration: underline; }
)css";

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

std::string summary_of_predictions(const std::vector<Comparison>& comparisons) {
  std::string out = "Largest rows, predicted ms beside the best published:\n";
  for (const Largest& l : largest_rows(comparisons)) {
    out += fmt::format("{:70} n {:>6} {:>10} {:>10}  ours/best {:>7}  of the byte limit {:>7}\n",
                       l.table, l.n, l.ours, l.best, l.share, l.limit_share);
  }
  Tally count;
  for (const Comparison& c : comparisons) {
    for (const Comparison::Row& row : c.rows) {
      if (tokens_of(*c.published, c.published->rows[row.index].n) < 4096) continue;
      for (const double ours : row.ours) {
        if (std::isnan(ours)) continue;
        const double share = ours / c.published->best(row.index);
        ++(share < 1 - tie ? count.below : share <= 1 + tie ? count.equal : count.above);
      }
    }
  }
  return out + fmt::format(
                   "predicted for 4096 tokens and more: {} of our figures are below the best "
                   "published one, {} within {:.0f} % of it, {} above\n",
                   count.below, count.equal, 100 * tie, count.above);
}

std::string as_csv(const Comparison& c) {
  std::string out = "# " + heading(c) + "\n";
  if (is_predicted(c)) out += "# " + how_predicted() + "\n";
  for (const std::string& note : c.notes) out += "# " + note + "\n";
  const auto add = [&](const std::vector<std::string>& cells) {
    out += fmt::format("{}\n", fmt::join(cells, ","));
  };
  add(column_names(c));
  for (const Comparison::Row& row : c.rows) add(cells_of(c, row));
  return out;
}

std::string as_html(const std::vector<Comparison>& comparisons) {
  std::string out = quipu::detail::html_page_begin("Quipu: tables", style);
  out +=
      "<h1>Published tables, and ours</h1>\n<p>Ours are the shaded columns; the best published "
      "figure of a row is underlined.</p>\n";
  if (std::any_of(comparisons.begin(), comparisons.end(), is_predicted)) {
    out += "<p>" + how_predicted() + "</p>\n" + html_summary(comparisons);
  }
  for (const Comparison& c : comparisons) out += "<div>\n" + html_table(c) + "</div>\n";
  return out + quipu::detail::html_page_end();
}

}  // namespace quipu::bench
