#include "page.h"

#include <fmt/format.h>

#include "quipu/core/io/atomic_file.h"
#include "quipu/core/report/html.h"

namespace quipu::bench::report {
namespace {

using quipu::detail::html_escape;

constexpr const char* style = R"css(
:root { --fast: 0 114 178; --slow: 213 94 0; --fwd: #0072b2; --bwd: #c45500; }
@media (prefers-color-scheme: dark) { :root { --fast: 40 130 200; --slow: 214 110 0;
  --fwd: #56b4e9; --bwd: #f0a030; } }
body { max-width: 1280px; }
.summary { color: var(--text); font-size: 19px; margin-bottom: 4px; }
.machine { color: var(--soft); margin: 0 0 18px; }
section p { margin: 0 0 10px; color: var(--soft); }
h3 { font-size: 14px; margin: 0 0 4px; }
.maps { display: flex; flex-wrap: wrap; gap: 20px; }
.map { overflow-x: auto; max-width: 100%; }
.map table { font-size: 12.5px; line-height: 1.25; }
.map th { font-weight: normal; color: var(--soft); text-align: right; padding: 1px 6px; }
.map th:first-child { text-align: left; padding-left: 0; white-space: nowrap; position: sticky;
  left: 0; background: var(--card); }
.map td { text-align: right; padding: 2px 6px; min-width: 50px; border: 1px solid var(--card);
  white-space: nowrap; }
.more { background: rgb(var(--fast) / var(--a)); }
.less { background: rgb(var(--slow) / var(--a)); }
td.slower { font-weight: 700; }
td.slower::before { content: "▾ "; }
.key { white-space: nowrap; padding: 0 6px; border-radius: 4px; color: var(--text); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; }
.legend svg { width: 28px; height: 10px; margin-right: 6px; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 14px; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: 13px; color: var(--soft); }
figcaption b { color: var(--text); font-weight: 600; }
figure svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--grid); }
svg .axis { fill: var(--soft); font-size: 12px; }
path { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
path.fwd { stroke: var(--fwd); } path.bwd { stroke: var(--bwd); }
path.peer { stroke-width: 1.2; stroke-dasharray: 6 3; }
path.limit { stroke-width: 1.4; stroke-dasharray: 1 4; stroke-linecap: round; }
g.fwd { fill: var(--fwd); } g.bwd { fill: var(--bwd); }
g.fwd.peer { fill: var(--card); stroke: var(--fwd); }
g.bwd.peer { fill: var(--card); stroke: var(--bwd); }
details { margin-top: 8px; }
summary { cursor: pointer; padding: 4px 0; }
.figures td, .figures th { text-align: right; padding: 1px 10px; font-size: 13px;
  border-bottom: 1px solid var(--grid); white-space: nowrap; }
.figures td:first-child, .figures th:first-child { text-align: left; }
.wide { overflow-x: auto; }
)css";

std::string figure(double value, const char* format) {
  return std::isnan(value) ? "–" : fmt::format(fmt::runtime(format), value);
}

std::string table(const std::vector<std::string>& head,
                  const std::vector<std::vector<std::string>>& rows) {
  const auto line = [](const char* tag, const std::vector<std::string>& cells) {
    std::string html = "<tr>";
    for (const std::string& text : cells) {
      html += fmt::format("<{0}>{1}</{0}>", tag, html_escape(text));
    }
    return html + "</tr>\n";
  };
  std::string html = "<div class=\"wide\"><table class=\"figures\">\n" + line("th", head);
  for (const auto& cells : rows) html += line("td", cells);
  return html + "</table></div>\n";
}

std::string folded(const std::string& title, const std::string& html) {
  return "<details><summary>" + title + "</summary>\n" + html + "</details>\n";
}

std::string case_table(const Comparison& comparison) {
  std::vector<std::string> head{"case", "ms", "GB/s", "of copies", "of multiply-adds"};
  if (comparison.peers) head.insert(head.end(), {"peer", "its ms", "ratio"});
  if (comparison.earlier) head.insert(head.end(), {"earlier ms", "ratio"});
  std::vector<std::vector<std::string>> rows;
  for (const Row& row : comparison.rows) {
    const Timing& t = row.ours;
    rows.push_back({row.c.text(), figure(t.ms, "{:.4g}"), figure(t.bytes / t.ms * 1e-6, "{:.1f}"),
                    figure(100 * t.of_copy, "{:.0f} %"), figure(100 * t.of_peak, "{:.0f} %")});
    if (comparison.peers) {
      rows.back().insert(rows.back().end(), {row.peer, figure(row.peer_ms, "{:.4g}"),
                                             figure(row.to_peer(), "{:.2f}")});
    }
    if (comparison.earlier) {
      rows.back().insert(rows.back().end(),
                         {figure(row.earlier_ms, "{:.4g}"), figure(row.to_earlier(), "{:.2f}")});
    }
  }
  return table(head, rows);
}

/// Benchmarks that are no cases: they have other sizes than n, or none.
std::string other_table(const Comparison& comparison) {
  const std::map<std::string, Timing>& all = comparison.now.timings;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, t] : all) {
    if (name.find("/fwd/") != std::string::npos || name.find("/bwd/") != std::string::npos)
      continue;
    double earlier = unknown;
    if (comparison.earlier && comparison.earlier->timings.contains(name)) {
      earlier = comparison.earlier->timings.at(name).ms;
    }
    rows.push_back({name, figure(t.ms, "{:.4g}"), figure(100 * t.of_copy, "{:.0f} %"),
                    figure(100 * t.of_peak, "{:.0f} %"), figure(earlier / t.ms, "{:.2f}")});
  }
  if (rows.empty()) return "";
  return folded(
      fmt::format("{} other benchmarks", rows.size()),
      table({"benchmark", "ms", "of copies", "of multiply-adds", "to the baseline"}, rows));
}

std::string missing_tables(const Comparison& comparison) {
  std::string html;
  std::vector<std::vector<std::string>> alone;
  if (comparison.peers) {
    const std::map<Case, Timing> ours = cases_of(comparison.now);
    for (const auto& [c, times] : comparison.peers->ms) {
      if (!ours.contains(c)) alone.push_back({c.text()});
    }
  }
  if (!alone.empty()) {
    html += folded(fmt::format("{} of the peers' cases without ours", alone.size()),
                   table({"case"}, alone));
  }
  std::vector<std::vector<std::string>> left_out;
  for (const auto& [name, why] : comparison.now.left_out) left_out.push_back({name, why});
  if (!left_out.empty()) {
    html += folded(fmt::format("{} cases left out", left_out.size()),
                   table({"benchmark", "why"}, left_out));
  }
  return html;
}

}  // namespace

std::string machine_line(const Comparison& comparison) {
  const Machine& m = comparison.now.machine;
  std::vector<std::string> parts;
  if (!m.device.empty() && m.device != "cpu") parts.push_back(m.device);
  if (!m.processor.empty()) parts.push_back(m.processor);
  if (!m.level.empty()) parts.push_back("instructions " + m.level);
  if (m.threads > 0)
    parts.push_back(fmt::format("{} thread{}", m.threads, m.threads > 1 ? "s" : ""));
  if (m.copy > 0) parts.push_back(fmt::format("copies {:.1f} GB/s", m.copy * 1e-9));
  if (m.peak > 0) parts.push_back(fmt::format("multiply-adds {:.0f} GFLOP/s", m.peak * 1e-9));
  if (!m.quipu.empty()) parts.push_back("quipu " + m.quipu);
  if (comparison.peers) parts.push_back("peers " + names_of_peers(comparison));
  if (!m.date.empty()) parts.push_back(m.date);
  return fmt::format("{}", fmt::join(parts, " · "));
}

std::string tables(const Comparison& comparison) {
  return "<section><h2>Figures</h2>\n" +
         folded(fmt::format("{} cases", comparison.rows.size()), case_table(comparison)) +
         other_table(comparison) + missing_tables(comparison) + "</section>\n";
}

std::string page_html(const Comparison& comparison) {
  return quipu::detail::html_page_begin("Quipu: speed", style) + "<h1>How fast Quipu is</h1>\n" +
         "<p class=\"summary\">" + html_escape(how_it_stands(comparison)) +
         "</p>\n<p class=\"machine\">" + html_escape(machine_line(comparison)) + "</p>\n" +
         heat_maps(comparison) + curves(comparison) + tables(comparison) +
         quipu::detail::html_page_end();
}

void check_writable(const std::string& path) {
  const quipu::detail::AtomicFile file(path);  // its temporary file goes away again
}

void save_text(const std::string& path, const std::string& text) {
  quipu::detail::AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void save_page(const Comparison& comparison, const std::string& path) {
  save_text(path, page_html(comparison));
}

}  // namespace quipu::bench::report
