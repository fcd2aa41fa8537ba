#include "results.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "page.h"

namespace quipu::bench::report {
namespace {

using nlohmann::ordered_json;

/// To four digits: more would be noise.
ordered_json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.4g}", value));
}

ordered_json row_json(const Row& row) {
  ordered_json json{
      {"op", row.c.op}, {"pass", row.c.pass},         {"dtype", row.c.dtype},
      {"n", row.c.n},   {"ms", rounded(row.ours.ms)}, {"of_limit", rounded(row.ours.of_limit())}};
  if (row.peer.empty()) return json;
  json["peer"] = row.peer;
  json["peer_ms"] = rounded(row.peer_ms);
  json["ratio"] = rounded(row.to_peer());
  return json;
}

}  // namespace

std::string results_json(const Comparison& comparison) {
  const Machine& m = comparison.now.machine;
  ordered_json head{{"quipu", m.quipu},
                    {"date", m.date},
                    {"processor", m.processor},
                    {"cpu_level", m.level},
                    {"threads", m.threads},
                    {"copy_GB_per_s", rounded(m.copy * 1e-9)},
                    {"multiply_add_GFLOP_per_s", rounded(m.peak * 1e-9)}};
  head["peers"] = ordered_json::object();
  if (comparison.peers) head["peers"] = comparison.peers->versions;
  std::string text = head.dump(1);
  text.resize(text.rfind('\n'));  // the object goes on with its rows, each on a line
  text += ",\n \"rows\": [";
  const char* between = "\n";
  for (const Row& row : comparison.rows) {
    text += between + ("  " + row_json(row).dump());
    between = ",\n";
  }
  return text + "\n ]\n}\n";
}

std::string machine_kind(const Machine& machine) {
  std::string kind;
  for (const char c : machine.processor + " " + machine.level) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (plain) {
      kind += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!kind.empty() && kind.back() != '-') {
      kind += '-';
    }
  }
  if (kind.empty()) kind = "machine-";
  if (kind.back() != '-') kind += '-';
  return kind + fmt::format("{}-thread{}", machine.threads, machine.threads == 1 ? "" : "s");
}

void save_results(const Comparison& comparison, const std::string& folder) {
  const std::filesystem::path directory(folder);
  std::filesystem::create_directories(directory);
  const std::string kind = machine_kind(comparison.now.machine);
  save_text(directory / (kind + ".json"), results_json(comparison));
  save_page(comparison, directory / (kind + ".html"));
  const std::string svg = speed_svg(comparison);
  if (!svg.empty()) save_text(directory / "speed.svg", svg);
}

}  // namespace quipu::bench::report
