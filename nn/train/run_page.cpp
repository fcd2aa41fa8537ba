#include "quipu/nn/train/run_page.h"

#include <fmt/format.h>

#include <cmath>

#include "quipu/core/io/atomic_file.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/report/html.h"
#include "quipu/nn/train/chart.h"
#include "quipu/nn/train/progress_line.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;
using Points = std::vector<std::pair<double, double>>;

constexpr const char* style = R"css(
h2 small { font-weight: normal; color: var(--soft); margin-left: 8px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 12px;
  margin-top: 12px; }
.card { background: var(--card); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.tiles .card b { display: block; font-size: 23px; font-weight: 600; }
.tiles .card span { color: var(--soft); }
.row section.card { margin-top: 0; }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { fill: var(--soft); font-size: 12px; }
svg .line { fill: none; stroke: var(--line); stroke-width: 2; stroke-linejoin: round; }
svg .raw { fill: none; stroke: var(--line); stroke-width: 1; opacity: .35; }
svg .peak { fill: none; stroke: var(--line); stroke-width: 1.2; stroke-dasharray: 4 3; opacity: .8; }
body > section svg { min-width: 620px; }
table { width: 100%; }
td { padding: 4px 0; border-top: 1px solid var(--grid); }
tr:first-child td { border-top: 0; }
td:first-child { color: var(--soft); width: 40%; padding-right: 16px; }
)css";

Points points_of(const RunFigures& run, auto value) {
  Points points;
  for (const StepRecord& r : run.history) {
    if (const std::optional<double> y = value(r)) {
      points.emplace_back(static_cast<double>(r.step), *y);
    }
  }
  return points;
}

Points losses_of(const RunFigures& run) {
  return points_of(run, [](const StepRecord& r) { return r.loss; });
}

Points smooth_losses(const RunFigures& run) {
  const Points losses = losses_of(run);
  return smoothed(losses, wants_log_axis(losses));
}

std::string number_text(double value) {
  return fmt::format("{:.4g}", value);
}

std::string section_html(const std::string& title, const std::string& note,
                         const std::string& body) {
  const std::string small = note.empty() ? "" : "<small>" + note + "</small>";
  return "<section class=\"card\"><h2>" + title + small + "</h2>\n" + body + "</section>\n";
}

std::string loss_section(const RunFigures& run) {
  const Points losses = losses_of(run);
  const bool log = wants_log_axis(losses);
  const std::string svg = chart_svg({.series = {{losses, "raw"}, {smoothed(losses, log), "line"}},
                                     .logarithmic = log,
                                     .label = "loss over steps"});
  return section_html("Loss",
                      std::string("over steps; thin: as measured, thick: smoothed") +
                          (log ? "; logarithmic scale" : ""),
                      svg);
}

std::string small_section(const char* title, const std::string& note,
                          const std::vector<ChartSeries>& series) {
  if (series.back().points.empty()) return "";
  return section_html(title, note,
                      chart_svg({.series = series,
                                 .width = 320,
                                 .height = 190,
                                 .from_zero = true,
                                 .label = std::string(title) + " over steps"}));
}

/// A unit in which the largest of these bytes is a number that reads well.
std::pair<double, const char*> unit_for(std::size_t bytes) {
  const char* const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double size = 1;
  while (static_cast<double>(bytes) >= 1024 * size && unit < 4) {
    size *= 1024;
    ++unit;
  }
  return {size, names[unit]};
}

std::string memory_section(const RunFigures& run) {
  const auto [size, name] = unit_for(run.peak);
  const auto in_units = [&run, unit = size](auto member) {
    return points_of(run, [=](const StepRecord& r) {
      return std::optional(static_cast<double>(r.*member) / unit);
    });
  };
  return small_section(
      "Memory", std::string(name) + "; dashed: peak",
      {{in_units(&StepRecord::peak), "peak"}, {in_units(&StepRecord::memory), "line"}});
}

std::string small_sections(const RunFigures& run) {
  const auto lr = [](const StepRecord& r) { return r.lr; };
  const auto rate = [](const StepRecord& r) {
    return r.rate > 0 ? std::optional(r.rate) : std::nullopt;
  };
  return "<div class=\"row\">\n" +
         small_section("Learning rate", "", {{points_of(run, lr), "line"}}) +
         small_section("Speed", escape_html(run.unit) + " a second",
                       {{points_of(run, rate), "line"}}) +
         memory_section(run) + "</div>\n";
}

std::string table(const Rows& rows) {
  std::string html = "<table>\n";
  for (const auto& [name, value] : rows) {
    html += "<tr><td>" + escape_html(name) + "</td><td>" + escape_html(value) + "</td></tr>\n";
  }
  return html + "</table>\n";
}

std::string step_time(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

/// 12345678 as "12 345 678".
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t i = text.size(); i > 3;) text.insert(i -= 3, 1, ' ');
  return text;
}

Rows figure_rows(const RunFacts& facts, const RunFigures& run) {
  Rows rows;
  if (!facts.score.empty()) rows.emplace_back(facts.score_name, facts.score);
  if (facts.parameters > 0) rows.emplace_back("parameters", grouped(facts.parameters));
  rows.emplace_back("steps", grouped(run.steps));
  if (run.own_steps != run.steps) rows.emplace_back("of them in this run", grouped(run.own_steps));
  rows.emplace_back("time", short_time(run.seconds));
  rows.emplace_back("median step", step_time(run.median_seconds));
  if (run.mean_rate > 0) rows.emplace_back(run.unit + " a second", short_number(run.mean_rate));
  rows.emplace_back("peak memory", human_bytes(run.peak));
  rows.emplace_back("device", to_string(run.device));
  if (facts.seed) rows.emplace_back("seed", std::to_string(*facts.seed));
  return rows;
}

std::string summary_of(const RunFigures& run) {
  std::string text = fmt::format("{} steps in {}", grouped(run.own_steps), short_time(run.seconds));
  const Points smooth = smooth_losses(run);
  if (smooth.empty()) return text + ".";
  return text + fmt::format(". The loss went from {} to {}.", number_text(smooth.front().second),
                            number_text(smooth.back().second));
}

}  // namespace

std::string detail::escape_html(const std::string& text) {
  return quipu::detail::html_escape(text);
}

RunPage::RunPage(const RunFacts& facts, const RunFigures& run)
    : title_(facts.title), summary_(summary_of(run)) {
  if (!facts.score.empty()) tiles_.emplace_back(facts.score_name, facts.score);
  if (const Points losses = smooth_losses(run); !losses.empty()) {
    tiles_.emplace_back("final loss", number_text(losses.back().second));
  }
  tiles_.emplace_back("time", short_time(run.seconds));
  tiles_.emplace_back("a step (median)", step_time(run.median_seconds));
  tiles_.emplace_back("peak memory", human_bytes(run.peak));
  sections_.push_back(loss_section(run) + small_sections(run));
  const auto table_of = [](const char* title, const Rows& rows) {
    return rows.empty() ? "" : section_html(title, "", table(rows));
  };
  sections_.push_back("<div class=\"row\">\n" + table_of("Figures", figure_rows(facts, run)) +
                      table_of("Options", facts.options) + "</div>\n");
}

void RunPage::add_section(const std::string& title, const std::string& html) {
  sections_.push_back(section_html(escape_html(title), "", html));
}

std::string RunPage::html() const {
  std::string page = quipu::detail::html_page_begin(title_, style) + "<h1>" + escape_html(title_) +
                     "</h1>\n<p class=\"summary\">" + escape_html(summary_) +
                     "</p>\n<div class=\"tiles\">\n";
  for (const auto& [name, value] : tiles_) {
    page += "<div class=\"card\"><b>" + escape_html(value) + "</b><span>" + escape_html(name) +
            "</span></div>\n";
  }
  page += "</div>\n";
  for (const std::string& section : sections_) page += section;
  return page + quipu::detail::html_page_end();
}

void RunPage::check_writable(const std::string& path) {
  const AtomicFile file(path);  // its temporary file goes away again
}

void RunPage::save(const std::string& path) const {
  const std::string page = html();
  AtomicFile file(path);
  file.write(page.data(), page.size());
  file.commit();
}

}  // namespace quipu::nn
