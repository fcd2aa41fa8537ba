// Live memory over time as stacked areas, a piece of HTML with its style.
#include <fmt/format.h>

#include <algorithm>

#include "quipu/core/report/memory_page.h"

namespace quipu {
using namespace detail;
namespace detail::memory_page {

const char* const style = R"css(<style>
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
.quipu-memory svg .peak { fill: var(--mark); stroke: none; opacity: 1;
  font-weight: 600; font-size: 13px; }
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
.quipu-memory .thin { display: flex; height: 11px; border-radius: 3px; overflow: hidden; }
.quipu-memory td.bytes { width: 1%; text-align: right; font-variant-numeric: tabular-nums; }
</style>
)css";

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

namespace {

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
    const double step = tick_step(most_);
    for (int i = 0; i * step < most_; ++i) {
      const double tick = i * step;
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

}  // namespace
}  // namespace detail::memory_page

using namespace memory_page;

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

}  // namespace quipu
