#include "quipu/nn/train/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "quipu/nn/train/progress_line.h"

namespace quipu::nn::detail {
namespace {

using Point = std::pair<double, double>;
constexpr int left = 64, right = 12, top = 10, bottom = 26;

/// 1, 2 or 5 times a power of ten that cuts `range` into about `count` parts.
double nice_step(double range, int count) {
  const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int count) {
  const double step = nice_step(high - low, count);
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);
  }
  return ticks;
}

/// Powers of ten, every so manieth where there are many; with 2 and 5 between where there are few.
std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(low)), last = static_cast<int>(std::ceil(high));
  const int skip = std::max(1, (last - first) / 6);
  std::vector<double> ticks;
  for (int power = first; power <= last; power += skip) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && last - first > 3) continue;
      const double tick = power + std::log10(factor);
      if (tick >= low - 1e-9 && tick <= high + 1e-9) ticks.push_back(tick);
    }
  }
  return ticks;
}

/// Ticks are round numbers: few digits say all of it.
std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e5) {
    const std::string text = fmt::format("{:g}", size >= 1e9   ? value / 1e9
                                                 : size >= 1e6 ? value / 1e6
                                                               : value / 1e3);
    return text + (size >= 1e9 ? "G" : size >= 1e6 ? "M" : "k");
  }
  return fmt::format("{:.6g}", value);
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  /// Room to both sides, and more where there is nothing between them.
  void widen(double part) {
    const double room = high > low ? (high - low) * part : std::max(std::abs(high) * 0.1, 1e-9);
    low -= room;
    high += room;
  }
};

class Drawing {
 public:
  explicit Drawing(const Chart& chart) : chart_(chart) {
    for (const ChartSeries& s : chart.series) {
      for (const Point& p : s.points) {
        if (!drawable(p)) continue;
        x_.include(scaled_x(p.first));
        y_.include(scaled(p.second));
      }
    }
    if (empty()) return;
    if (chart.from_zero) y_.include(0);
    if (chart.x_ticks.empty() && x_.low > 0 && x_.low < 0.02 * x_.high) x_.low = 0;
    const double floor = y_.low;
    y_.widen(0.05);
    if (chart.from_zero && floor >= 0) y_.low = 0;
    if (!(x_.high > x_.low)) x_.widen(0);
  }

  bool empty() const { return !(x_.high >= x_.low); }

  std::string axes() const {
    std::string svg;
    for (const double tick :
         chart_.logarithmic ? log_ticks(y_.low, y_.high) : linear_ticks(y_.low, y_.high, 5)) {
      const double value = chart_.logarithmic ? std::pow(10, tick) : tick, y = y_of(tick);
      svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                         left, chart_.width - right, y, y);
      svg +=
          fmt::format("<text class=\"axis\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
                      left - 8, y + 4, tick_text(value));
    }
    for (const double tick : x_ticks()) {
      const double x = x_of(tick);
      const bool last = x > chart_.width - right - 24;
      svg +=
          fmt::format("<text class=\"axis\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                      last ? chart_.width - right : x, chart_.height - 6, last ? "end" : "middle",
                      tick_text(tick));
    }
    return svg;
  }

  /// One polyline; in each column of pixels no more than its lowest and its highest point.
  std::string line(const ChartSeries& series) const {
    std::string path;
    const auto add = [&](const Point& p) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", x_of(p.first),
                          y_of(scaled(p.second)));
    };
    std::vector<Point> column;
    const auto flush = [&] {
      if (column.empty()) return;
      const auto by_height = [](const Point& a, const Point& b) { return a.second < b.second; };
      auto [low, high] = std::minmax_element(column.begin(), column.end(), by_height);
      if (high < low) std::swap(low, high);
      add(*low);
      if (high != low) add(*high);
      column.clear();
    };
    for (const Point& p : series.points) {
      if (!drawable(p)) continue;
      if (!column.empty() && std::floor(x_of(p.first)) != std::floor(x_of(column[0].first)))
        flush();
      column.push_back(p);
    }
    flush();
    if (path.empty()) return "";
    return fmt::format("<path class=\"{}\" d=\"{}\"/>\n", series.style, path) + dots(series);
  }

 private:
  std::string dots(const ChartSeries& series) const {
    if (!series.dots) return "";
    std::string svg = fmt::format("<g class=\"{}\">", series.style);
    for (const Point& p : series.points) {
      if (!drawable(p)) continue;
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", x_of(p.first),
                         y_of(scaled(p.second)));
    }
    return svg + "</g>\n";
  }
  bool drawable(const Point& p) const {
    return std::isfinite(p.first) && std::isfinite(p.second) &&
           (!chart_.logarithmic || p.second > 0) && (chart_.x_ticks.empty() || p.first > 0);
  }
  std::vector<double> x_ticks() const {
    if (!chart_.x_ticks.empty()) return chart_.x_ticks;
    std::vector<double> ticks =
        linear_ticks(x_.low, x_.high, std::max(2, (chart_.width - left - right) / 110));
    std::erase_if(ticks, [](double tick) { return tick != std::floor(tick); });  // no half steps
    return ticks;
  }
  double scaled_x(double x) const { return chart_.x_ticks.empty() ? x : std::log10(x); }
  double scaled(double y) const { return chart_.logarithmic ? std::log10(y) : y; }
  double x_of(double x) const {
    return left + (scaled_x(x) - x_.low) / (x_.high - x_.low) * (chart_.width - left - right);
  }
  double y_of(double y) const {
    return chart_.height - bottom -
           (y - y_.low) / (y_.high - y_.low) * (chart_.height - top - bottom);
  }

  const Chart& chart_;
  Range x_, y_;
};

}  // namespace

std::string chart_svg(const Chart& chart) {
  const Drawing drawing(chart);
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                chart.width, chart.height, chart.label);
  if (drawing.empty()) {
    svg += fmt::format(
        "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">nothing was "
        "recorded</text>\n",
        chart.width / 2, chart.height / 2);
  } else {
    svg += drawing.axes();
    for (const ChartSeries& series : chart.series) svg += drawing.line(series);
  }
  return svg + "</svg>\n";
}

bool wants_log_axis(const std::vector<Point>& points) {
  Range range;
  for (const Point& p : points) {
    if (std::isfinite(p.second)) range.include(p.second);
  }
  return range.low > 0 && range.high >= 30 * range.low;
}

std::vector<Point> smoothed(const std::vector<Point>& points, bool logarithmic) {
  std::vector<Point> good;
  for (const Point& p : points) {
    if (std::isfinite(p.second) && (!logarithmic || p.second > 0)) good.push_back(p);
  }
  const auto n = static_cast<std::int64_t>(good.size()), reach = n / 100;
  std::vector<double> sums{0};  // of all before
  for (const Point& p : good) {
    sums.push_back(sums.back() + (logarithmic ? std::log(p.second) : p.second));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t first = std::max<std::int64_t>(i - reach, 0);
    const std::int64_t end = std::min(i + reach + 1, n);
    const double sum = sums[static_cast<std::size_t>(end)] - sums[static_cast<std::size_t>(first)];
    const double mean = sum / static_cast<double>(end - first);
    good[static_cast<std::size_t>(i)].second = logarithmic ? std::exp(mean) : mean;
  }
  return good;
}

}  // namespace quipu::nn::detail
