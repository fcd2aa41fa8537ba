// Reports as text and JSON, and what they advise.
#include "quipu/core/report/memory_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace quipu {
using namespace detail;
namespace {

std::size_t at(const CategoryBytes& bytes, Category category) {
  return bytes[static_cast<std::size_t>(category)];
}

/// The first components of a path: ("model/layers.3/mlp", 2) -> "model/layers.3".
std::string first_components(const std::string& path, int count) {
  std::size_t end = 0;
  while (count-- > 0 && end != std::string::npos) end = path.find('/', end + (end > 0));
  return path.substr(0, end);
}

struct SavedUnder {
  std::size_t bytes = 0, blocks = 0;
};
/// What is saved under each scope, at the first depth where there are several; "" for no scope.
std::map<std::string, SavedUnder> saved_by_scope(const MemoryReport& report) {
  std::map<std::string, SavedUnder> groups;
  for (int depth = 1; depth <= 4 && groups.size() < 2; ++depth) {
    groups.clear();
    for (const MemoryHolder& h : report.holders) {
      if (h.category != Category::saved) continue;
      SavedUnder& group = groups[first_components(h.scope, depth)];
      group.bytes += h.bytes;
      group.blocks += h.blocks;
    }
  }
  return groups;
}

/// What `recompute` would save: all that its scope keeps but one tensor, its input. Scopes that
/// keep no more than two are taken to be recomputed already.
MemoryAdvice recompute_advice(const MemoryReport& report) {
  std::size_t sum = 0, largest = 0, scopes = 0;
  std::string name;
  for (const auto& [scope, saved] : saved_by_scope(report)) {
    if (saved.blocks <= 2) continue;
    if (scope.empty()) return {"recompute() around layers", saved.bytes / 2};
    const std::size_t saves = saved.bytes - saved.bytes / saved.blocks;
    ++scopes;
    sum += saves;
    if (saves > largest) name = scope;
    largest = std::max(largest, saves);
  }
  return {fmt::format("recompute() around each of {} scopes such as {}", scopes, name),
          sum - largest};
}

std::string or_dash(const std::string& name) {
  return name.empty() ? "-" : name;
}

nlohmann::json as_json(const CategoryBytes& bytes) {
  nlohmann::json json;
  for (int c = 0; c < category_count; ++c) {
    json[name_of(static_cast<Category>(c))] = bytes[static_cast<std::size_t>(c)];
  }
  return json;
}

nlohmann::json as_json(const std::vector<TimelinePoint>& timeline) {
  nlohmann::json json;
  for (const TimelinePoint& point : timeline) {
    json["event"].push_back(point.event);
    json["seconds"].push_back(point.seconds);
    for (int c = 0; c < category_count; ++c) {
      json[name_of(static_cast<Category>(c))].push_back(point.bytes[static_cast<std::size_t>(c)]);
    }
  }
  return json;
}

}  // namespace

std::string human_bytes(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  for (; value >= 1024; ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, units[unit]);
}

std::vector<MemoryAdvice> MemoryReport::advice() const {
  std::vector<MemoryAdvice> advice{recompute_advice(*this)};
  // Gradients beyond those of the parameters are of what depends on the batch.
  const std::size_t own =
      std::min(at(by_category, Category::gradient), at(by_category, Category::parameter));
  const std::size_t with_batch = at(by_category, Category::saved) +
                                 at(by_category, Category::output) +
                                 at(by_category, Category::gradient) - own;
  advice.push_back({"a smaller batch, half as large", with_batch / 2});
  const std::size_t wide =
      at(in_f32, Category::saved) + at(in_f32, Category::output) + at(in_f32, Category::gradient);
  advice.push_back({"bf16 instead of f32", wide / 2});
  // Less than a hundredth is no help.
  std::erase_if(advice,
                [&](const MemoryAdvice& a) { return a.saves == 0 || a.saves < bytes / 100; });
  std::stable_sort(advice.begin(), advice.end(),
                   [](const MemoryAdvice& a, const MemoryAdvice& b) { return a.saves > b.saves; });
  return advice;
}

std::string MemoryReport::json() const {
  nlohmann::json json{{"device", to_string(device)},
                      {"moment", moment},
                      {"bytes", bytes},
                      {"reserved", reserved},
                      {"by_category", as_json(by_category)},
                      {"holders", nlohmann::json::array()},
                      {"blocks", nlohmann::json::array()},
                      {"knots", nlohmann::json::array()},
                      {"advice", nlohmann::json::array()}};
  for (const MemoryHolder& h : holders) {
    json["holders"].push_back({{"category", name_of(h.category)},
                               {"op", h.op},
                               {"scope", h.scope},
                               {"bytes", h.bytes},
                               {"blocks", h.blocks}});
  }
  for (const MemoryBlock& b : blocks) {
    json["blocks"].push_back({{"category", name_of(b.category)},
                              {"op", b.op},
                              {"scope", b.scope},
                              {"tensor", b.tensor},
                              {"bytes", b.bytes}});
  }
  for (const KnotMemory& k : knots) {
    json["knots"].push_back({{"knot", k.knot},
                             {"op", k.op},
                             {"scope", k.scope},
                             {"output", k.output},
                             {"saved", k.saved},
                             {"workspace", k.workspace}});
  }
  for (const MemoryAdvice& a : advice()) {
    json["advice"].push_back({{"what", a.what}, {"saves", a.saves}});
  }
  if (!timeline.empty()) {
    json["timeline"] = as_json(timeline);
    json["peak_event"] = peak_event;
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string MemoryReport::text(int max_holders) const {
  std::string out = fmt::format("memory on {} {}: {} live, {} reserved\n", to_string(device),
                                moment, human_bytes(bytes), human_bytes(reserved));
  for (int c = 0; c < category_count; ++c) {
    const std::size_t held = by_category[static_cast<std::size_t>(c)];
    if (held == 0) continue;
    out += fmt::format("  {:<10} {:>11}  {:5.1f} %\n", name_of(static_cast<Category>(c)),
                       human_bytes(held),
                       100.0 * static_cast<double>(held) / static_cast<double>(bytes));
  }
  if (holders.empty()) return out;
  out += "  largest holders\n";
  const auto shown = std::min(holders.size(), static_cast<std::size_t>(std::max(max_holders, 0)));
  for (std::size_t i = 0; i < shown; ++i) {
    const MemoryHolder& h = holders[i];
    out += fmt::format("    {:>11}  {:<10} {:<16} {:<24} {} block{}\n", human_bytes(h.bytes),
                       name_of(h.category), or_dash(h.op), or_dash(h.scope), h.blocks,
                       h.blocks == 1 ? "" : "s");
  }
  if (shown < holders.size()) {
    std::size_t rest = 0;
    for (std::size_t i = shown; i < holders.size(); ++i) rest += holders[i].bytes;
    out += fmt::format("    {:>11}  in {} more\n", human_bytes(rest), holders.size() - shown);
  }
  return out;
}

}  // namespace quipu
