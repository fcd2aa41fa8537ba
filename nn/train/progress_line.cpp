#include "quipu/nn/train/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "quipu/core/memory/memory.h"

namespace quipu::nn::detail {
namespace {

/// A part of the line; those with the highest rank go first when it gets too long.
struct Part {
  int rank;
  std::string text;
};

/// As many digits as let a person see it move.
std::string loss_text(double loss) {
  const double size = std::abs(loss);
  if (std::isnan(loss)) return "loss nan";  // whatever its sign
  if (std::isinf(loss)) return fmt::format("loss {}", loss);
  if (size != 0 && (size < 1e-3 || size >= 1e5)) return fmt::format("loss {:.3e}", loss);
  return fmt::format("loss {:.{}f}", loss, size < 10 ? 4 : size < 1000 ? 2 : 0);
}

std::vector<Part> parts_of(const ProgressFigures& f) {
  std::vector<Part> parts;
  const std::string all = f.steps > 0 ? fmt::format("/{}", f.steps) : "";
  parts.push_back({0, fmt::format("step {}{}", f.step, all)});
  if (f.loss) parts.push_back({1, loss_text(*f.loss)});
  if (!f.extra.empty()) parts.push_back({4, f.extra});
  if (f.rate > 0) parts.push_back({3, fmt::format("{} {}/s", short_number(f.rate), f.unit)});
  parts.push_back({5, "memory " + human_bytes(f.memory)});
  parts.push_back({6, "peak " + human_bytes(f.peak)});
  if (f.seconds_left) parts.push_back({2, short_time(*f.seconds_left) + " left"});
  if (f.seconds_taken) parts.push_back({2, "took " + short_time(*f.seconds_taken)});
  return parts;
}

std::string join(const std::vector<Part>& parts, bool utf8) {
  std::string line;
  for (const Part& part : parts) {
    if (!line.empty()) line += utf8 ? " · " : " | ";
    line += part.text;
  }
  return line;
}

}  // namespace

std::string short_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const char* const units[] = {"", "k", "M", "G", "T", "P"};
  std::size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  const double size = std::abs(value);
  const int digits = size >= 99.95 || (unit == 0 && value == std::floor(value)) ? 0
                     : size >= 9.995                                            ? 1
                                                                                : 2;
  return fmt::format("{:.{}f}{}", value, digits, units[unit]);
}

std::string short_time(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

int columns_of(const std::string& utf8_text) {
  return static_cast<int>(std::count_if(utf8_text.begin(), utf8_text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string progress_line(const ProgressFigures& figures, int width, bool utf8) {
  std::vector<Part> parts = parts_of(figures);
  std::string line = join(parts, utf8);
  while (columns_of(line) > width && parts.size() > 1) {
    parts.erase(std::max_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.rank < b.rank; }));
    line = join(parts, utf8);
  }
  if (columns_of(line) > width) line.resize(static_cast<std::size_t>(std::max(width, 0)));
  return line;
}

}  // namespace quipu::nn::detail
