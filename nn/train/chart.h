#pragma once
// A line chart as a piece of SVG. Colours come from the page's style sheet: classes `grid`, `axis`,
// `line`, `raw` and `peak`. Internal to nn/.
#include <string>
#include <utility>
#include <vector>

namespace quipu::nn::detail {

struct ChartSeries {
  std::vector<std::pair<double, double>> points = {};  // x rises
  std::string style = "line";                          // classes
  bool dots = false;  // at the points, in a group of the same classes
};

struct Chart {
  std::vector<ChartSeries> series = {};
  int width = 960, height = 320;
  bool logarithmic = false;          // of y; all values must be positive then
  bool from_zero = false;            // y begins at 0
  std::vector<double> x_ticks = {};  // of a logarithmic x axis; without them it is linear
  std::string label = {};            // for readers who cannot see it
};

/// Points that are not finite are left out. Without any point the chart says so.
std::string chart_svg(const Chart& chart);

/// True where only a logarithmic axis shows all of it: positive values, the largest of which is at
/// least 30 times the smallest.
bool wants_log_axis(const std::vector<std::pair<double, double>>& points);

/// The mean over a window around each point, a fiftieth of all of them wide; of the logarithms for
/// a logarithmic axis.
std::vector<std::pair<double, double>> smoothed(
    const std::vector<std::pair<double, double>>& points, bool logarithmic);

}  // namespace quipu::nn::detail
