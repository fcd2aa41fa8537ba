// Reports as pages: what was held at the peak in one bar, the way there as stacked areas, and the
// blocks, scopes and knots behind it. Everything is inside the file; colours follow the reader's
// light or dark screen.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "quipu/core/memory_report.h"

namespace quipu {
namespace {

constexpr std::size_t rows_shown = 20;

/// From the bottom of the stack to its top: what stays first, what comes and goes last.
constexpr Category stack[] = {Category::parameter, Category::optimizer, Category::gradient,
                              Category::saved,     Category::output,    Category::workspace};

constexpr const char* meaning_of(Category category) {
  constexpr const char* meanings[] = {"parameters",         "gradients", "optimizer state",
                                      "saved for backward", "outputs",   "workspace"};
  return meanings[static_cast<int>(category)];
}

constexpr const char* style = R"css(<style>
.quipu-memory { --soft: #5d6778; --grid: #dfe3ea; --mark: #1c2330; --parameter: #4269d0;
  --optimizer: #97bbf5; --gradient: #efb118; --saved: #e4572e; --output: #3ca951;
  --workspace: #9c6b4e; }
@media (prefers-color-scheme: dark) { .quipu-memory { --soft: #97a1b2; --grid: #2c3340;
  --mark: #e6e9ef; --parameter: #6b8ef0; --optimizer: #9fc0f7; --gradient: #f0c04a;
  --saved: #f0714c; --output: #55c26b; --workspace: #b98765; } }
.quipu-memory svg { display: block; width: 100%; height: auto; }
.quipu-memory svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.quipu-memory svg .grid { stroke: var(--grid); }
.quipu-memory svg .mark { stroke: var(--mark); stroke-width: 1.5; stroke-dasharray: 4 3; }
.quipu-memory svg .peak { fill: var(--mark); font-weight: 600; font-size: 13px; }
.quipu-memory .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0;
  color: var(--soft); }
.quipu-memory .legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; }
.quipu-memory .bar { display: flex; height: 26px; border-radius: 6px; overflow: hidden; }
.quipu-memory table { border-collapse: collapse; width: 100%; }
.quipu-memory th { text-align: left; font-weight: 500; color: var(--soft); }
.quipu-memory td, .quipu-memory th { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }
.quipu-memory td.share { width: 28%; min-width: 90px; }
.quipu-memory td.share div { height: 11px; border-radius: 3px; }
.quipu-memory td.bytes { text-align: right; font-variant-numeric: tabular-nums; }
</style>
)css";

constexpr const char* page_style = R"css(<style>
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1040px; padding: 28px 20px 48px; background: #f6f7f9;
  color: #1c2330; font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 26px; margin: 0; }
h2 { font-size: 16px; margin: 0 0 8px; }
p.summary { font-size: 17px; margin: 6px 0 18px; }
section { background: #fff; border-radius: 10px; padding: 14px 16px; margin-top: 12px;
  overflow-x: auto; }
@media (prefers-color-scheme: dark) { body { background: #12151b; color: #e6e9ef; }
  section { background: #1b2029; } }
</style>
)css";

std::string escaped(const std::string& text) {
  std::string html;
  for (const char c : text) {
    if (c == '&') {
      html += "&amp;";
    } else if (c == '<') {
      html += "&lt;";
    } else if (c == '>') {
      html += "&gt;";
    } else {
      html += c;
    }
  }
  return html;
}

std::string or_dash(const std::string& name) {
  return name.empty() ? "–" : escaped(name);
}

double share(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::size_t sum_of(const CategoryBytes& bytes) {
  std::size_t sum = 0;
  for (const std::size_t b : bytes) sum += b;
  return sum;
}

/// A round number of bytes, so that about four of them reach `most`.
double tick_step(double most) {
  double step = 1;
  while (step * 4 < most) step *= 2;
  return step;
}

/// Where points of the timeline lie in the picture.
class Canvas {
 public:
  static constexpr double width = 960, height = 300;

  explicit Canvas(const MemoryReport& report) : by_event_(report.device.is_meta()) {
    for (const TimelinePoint& p : report.timeline) {
      end_ = std::max(end_, position(p));
      most_ = std::max(most_, static_cast<double>(sum_of(p.bytes)));
    }
    most_ = std::max(most_, 1.0) * 1.08;  // room for the label of the peak
  }
  double x(const TimelinePoint& p) const { return left + (right - left) * position(p) / end_; }
  double y(double bytes) const { return bottom - (bottom - top) * bytes / most_; }

  std::string axes() const {
    std::string svg;
    for (double tick = 0, step = tick_step(most_); tick < most_; tick += step) {
      svg += fmt::format(
          "<line class=grid x1={0} x2={1} y1={2:.1f} y2={2:.1f} /><text x={3} y={4:.1f} "
          "text-anchor=end>{5}</text>\n",
          left, right, y(tick), left - 8, y(tick) + 4, tick_label(tick));
    }
    const std::string end =
        by_event_  ? fmt::format("{:.0f} allocations, releases and changes of category", end_)
        : end_ < 1 ? fmt::format("{:.3g} ms", end_ * 1e3)
                   : fmt::format("{:.3g} s", end_);
    return svg + fmt::format("<text x={} y={}>0</text><text x={} y={} text-anchor=end>{}</text>\n",
                             left, bottom + 18, right, bottom + 18, end);
  }

  /// Everything up to a category and below, as a staircase.
  std::string area(const MemoryReport& report, std::size_t levels) const {
    const auto height_of = [&](const TimelinePoint& p) {
      double bytes = 0;
      for (std::size_t i = 0; i <= levels; ++i)
        bytes += static_cast<double>(p.bytes[static_cast<std::size_t>(stack[i])]);
      return y(bytes);
    };
    std::string path = fmt::format("M{:.1f} {:.1f}", left, bottom);
    for (const TimelinePoint& p : report.timeline) {
      path += fmt::format("H{:.1f}V{:.1f}", x(p), height_of(p));
    }
    path += fmt::format("H{:.1f}V{:.1f}Z", right, bottom);
    return fmt::format("<path fill=\"var(--{})\" d=\"{}\"><title>{}</title></path>\n",
                       name_of(stack[levels]), path, meaning_of(stack[levels]));
  }

  std::string mark(const MemoryReport& report) const {
    for (const TimelinePoint& p : report.timeline) {
      if (p.event != report.peak_event) continue;
      const bool on_the_left = x(p) < (left + right) / 2;
      return fmt::format(
          "<line class=mark x1={0:.1f} x2={0:.1f} y1={1} y2={2} /><text class=peak x={3:.1f} "
          "y={4} text-anchor={5}>peak {6}</text>\n",
          x(p), top, bottom, x(p) + (on_the_left ? 7 : -7), top + 11, on_the_left ? "start" : "end",
          human_bytes(sum_of(p.bytes)));
    }
    return "";
  }

 private:
  static constexpr double left = 76, right = width - 10, top = 6, bottom = height - 26;
  double position(const TimelinePoint& p) const {
    return by_event_ ? static_cast<double>(p.event) : p.seconds;
  }
  static std::string tick_label(double bytes) {
    std::string text = human_bytes(static_cast<std::size_t>(bytes));
    if (const auto zeros = text.find(".0"); zeros != std::string::npos)
      text.erase(zeros, text.find(' ') - zeros);
    return text;
  }

  bool by_event_;
  double end_ = 1e-9, most_ = 0;
};

std::string legend(const CategoryBytes& bytes) {
  std::string html = "<div class=legend>";
  for (const Category c : stack) {
    const std::size_t held = bytes[static_cast<std::size_t>(c)];
    if (held == 0) continue;
    html += fmt::format("<span><i style=\"background: var(--{})\"></i>{} {}, {:.0f} %</span>",
                        name_of(c), meaning_of(c), human_bytes(held), share(held, sum_of(bytes)));
  }
  return html + "</div>\n";
}

std::string bar(const CategoryBytes& bytes) {
  std::string html = "<div class=bar>";
  for (const Category c : stack) {
    const double percent = share(bytes[static_cast<std::size_t>(c)], sum_of(bytes));
    if (percent > 0) {
      html +=
          fmt::format("<div style=\"width: {:.2f}%; background: var(--{})\" title=\"{}\"></div>",
                      percent, name_of(c), meaning_of(c));
    }
  }
  return html + "</div>\n";
}

/// A row whose first cells are a size and a bar as long as its share of `most`.
std::string row(std::size_t bytes, std::size_t most, const char* colour,
                const std::vector<std::string>& cells) {
  std::string html = fmt::format(
      "<tr><td class=bytes>{}</td><td class=share><div style=\"width: {:.1f}%; background: "
      "var(--{})\"></div></td>",
      human_bytes(bytes), share(bytes, most), colour);
  for (const std::string& cell : cells) html += "<td>" + cell + "</td>";
  return html + "</tr>\n";
}

std::string table(const std::vector<std::string>& names, const std::string& rows) {
  std::string html = "<table>\n<tr><th>bytes</th><th></th>";
  for (const std::string& name : names) html += "<th>" + name + "</th>";
  return html + "</tr>\n" + rows + "</table>\n";
}

std::string block_table(const MemoryReport& report) {
  std::string rows;
  for (const MemoryBlock& b : report.blocks) {
    rows += row(b.bytes, report.blocks[0].bytes, name_of(b.category),
                {or_dash(b.op), or_dash(b.scope), escaped(b.tensor), meaning_of(b.category)});
  }
  return table({"operator", "scope", "tensor", "held as"}, rows);
}

std::string holder_table(const MemoryReport& report) {
  std::string rows;
  for (std::size_t i = 0; i < std::min(report.holders.size(), rows_shown); ++i) {
    const MemoryHolder& h = report.holders[i];
    rows +=
        row(h.bytes, report.holders[0].bytes, name_of(h.category),
            {or_dash(h.op), or_dash(h.scope), std::to_string(h.blocks), meaning_of(h.category)});
  }
  return table({"operator", "scope", "blocks", "held as"}, rows);
}

std::string knot_table(const MemoryReport& report) {
  std::string rows;
  for (const KnotMemory& k : report.knots) {
    rows += row(k.saved, report.knots[0].saved, "saved",
                {std::to_string(k.knot), or_dash(k.op), or_dash(k.scope), escaped(k.output)});
  }
  return table({"knot", "operator", "scope", "output"}, rows);
}

std::string advice_list(const MemoryReport& report) {
  std::string html = "<ul>";
  for (const MemoryAdvice& a : report.advice()) {
    html += fmt::format("<li>{}: about {} less</li>", escaped(a.what), human_bytes(a.saves));
  }
  return html + "</ul>\n";
}

/// What held most, in a sentence.
std::string summary(const MemoryReport& report) {
  if (report.holders.empty()) return "Nothing was held.";
  const auto largest = std::max_element(report.by_category.begin(), report.by_category.end());
  const auto category = static_cast<Category>(largest - report.by_category.begin());
  const MemoryHolder& h = report.holders[0];
  std::string text =
      fmt::format("{} of {} ({:.0f} %) were {}. The largest holder was {}", human_bytes(*largest),
                  human_bytes(report.bytes), share(*largest, report.bytes), meaning_of(category),
                  h.op.empty() ? "no operator" : "<b>" + escaped(h.op) + "</b>");
  if (!h.scope.empty()) text += " in <b>" + escaped(h.scope) + "</b>";
  return text + fmt::format(" with {} ({}).", human_bytes(h.bytes), meaning_of(h.category));
}

std::string section(const std::string& title, const std::string& body) {
  return "<section class=quipu-memory><h2>" + title + "</h2>\n" + body + "</section>\n";
}

}  // namespace

std::string MemoryReport::timeline_html() const {
  std::string html = std::string(style) + "<div class=quipu-memory>\n";
  if (timeline.empty()) return html + "<p>No timeline was recorded.</p></div>\n";
  const Canvas canvas(*this);
  html += fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=img aria-label=\"live memory over time, by category\">\n",
      Canvas::width, Canvas::height);
  for (std::size_t i = std::size(stack); i-- > 0;) html += canvas.area(*this, i);
  return html + canvas.axes() + canvas.mark(*this) + "</svg>\n" + legend(by_category) + "</div>\n";
}

std::string MemoryReport::html(const std::string& title) const {
  std::string page =
      "<!DOCTYPE html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport "
      "content=\"width=device-width, initial-scale=1\">\n<title>" +
      escaped(title) + "</title>\n" + page_style + "</head>\n<body>\n";
  page += fmt::format("<h1>{}: {} on {} {}</h1>\n<p class=summary>{}</p>\n", escaped(title),
                      human_bytes(bytes), to_string(device), moment, summary(*this));
  if (timeline.empty()) {
    page += style + section("Held " + moment, bar(by_category) + legend(by_category));
  } else {
    page += section("Live memory, by what it is held as", timeline_html());
  }
  if (!advice().empty()) page += section("What would help", advice_list(*this));
  if (!blocks.empty()) {
    page +=
        section(fmt::format("The {} largest blocks {}", blocks.size(), moment), block_table(*this));
  }
  if (!holders.empty()) page += section("Added up by operator and scope", holder_table(*this));
  if (!knots.empty()) page += section("What the tape keeps, knot by knot", knot_table(*this));
  return page + "</body>\n</html>\n";
}

}  // namespace quipu
