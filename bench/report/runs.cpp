#include "runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace quipu::bench::report {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& text) {
  throw std::runtime_error(text);
}

std::ifstream open(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail("cannot read " + path);
  return file;
}

/// Google Benchmark and Python write NaN and Infinity, which JSON does not know.
json parse_json(const std::string& text) {
  static const std::regex not_finite(R"re((:\s*)-?(NaN|nan|Infinity|inf)\b)re");
  return json::parse(std::regex_replace(text, not_finite, "$1null"));
}

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? unknown : found->get<double>();
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  for (const char c : text) c == at ? parts.emplace_back() : parts.back() += c;
  return parts;
}

/// `op/variant/pass/dtype/n:256/cpu`, the variant perhaps missing; false for other benchmarks.
bool parse_name(const std::string& name, Case& found) {
  const std::vector<std::string> parts = split(name, '/');
  if (std::find(parts.begin(), parts.end(), "reference") != parts.end()) return false;
  for (std::size_t i = 1; i + 2 < parts.size(); ++i) {
    if (parts[i] != "fwd" && parts[i] != "bwd") continue;
    if (parts[i + 2].rfind("n:", 0) != 0) return false;
    found = {parts[0], parts[i], parts[i + 1], std::stoll(parts[i + 2].substr(2))};
    for (std::size_t k = 1; k < i; ++k) found.op += "_" + parts[k];
    return true;
  }
  return false;
}

Timing timing_of(const json& benchmark) {
  const std::map<std::string, double> units{{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}};
  Timing t;
  t.ms = number(benchmark, "real_time") * units.at(benchmark.at("time_unit").get<std::string>());
  t.bytes = number(benchmark, "bytes/s") * t.ms * 1e-3;
  t.flops = number(benchmark, "flop/s") * t.ms * 1e-3;
  t.of_copy = number(benchmark, "of_copy");
  t.of_peak = number(benchmark, "of_peak");
  return t;
}

Timing median_of(const std::vector<Timing>& runs) {
  Timing found;
  for (double Timing::*figure :
       {&Timing::ms, &Timing::bytes, &Timing::flops, &Timing::of_copy, &Timing::of_peak}) {
    std::vector<double> values;
    for (const Timing& t : runs) values.push_back(t.*figure);
    found.*figure = median(values);
  }
  return found;
}

Machine machine_of(const json& file) {
  const json context = file.value("context", json::object());
  Machine m{.quipu = context.value("quipu", ""),
            .date = context.value("date", "").substr(0, 10),
            .processor = context.value("processor", ""),
            .level = context.value("cpu_level", ""),
            .device = context.value("device", "")};
  m.threads = std::stoi(context.value("threads", "0"));
  for (const json& cache : context.value("caches", json::array())) {
    m.cache = std::max(m.cache, cache.value("size", std::int64_t{0}));
  }
  return m;
}

/// The limits follow from any rows that have shares of them.
void find_limits(Run& run) {
  std::vector<double> copies, peaks;
  for (const auto& [name, t] : run.timings) {
    const double seconds = t.ms * 1e-3;
    if (t.bytes > 0 && t.of_copy > 0) copies.push_back(t.bytes / seconds / t.of_copy);
    const bool is_f64 = name.find("/f64/") != std::string::npos;
    if (!is_f64 && t.flops > 0 && t.of_peak > 0) peaks.push_back(t.flops / seconds / t.of_peak);
  }
  if (!copies.empty()) run.machine.copy = median(copies);
  if (!peaks.empty()) run.machine.peak = median(peaks);
}

Run run_of(const json& file, const std::string& path) {
  std::map<std::string, std::vector<Timing>> runs, medians;
  Run run{.machine = machine_of(file), .timings = {}, .left_out = {}};
  for (const json& benchmark : file.at("benchmarks")) {
    const std::string name = benchmark.value("run_name", benchmark.at("name").get<std::string>());
    if (benchmark.value("error_occurred", false)) {
      const std::string message = benchmark.value("error_message", "");
      if (!message.starts_with("needs ")) fail(fmt::format("{}: {} failed", path, name));
      run.left_out[name] = message;
    } else if (benchmark.value("run_type", "iteration") == "iteration") {
      runs[name].push_back(timing_of(benchmark));
    } else if (benchmark.value("aggregate_name", "") == "median") {
      medians[name] = {timing_of(benchmark)};
    }
  }
  runs.merge(medians);  // in a file of aggregates only those are there
  for (const auto& [name, timings] : runs) {
    const Timing t = median_of(timings);
    if (!(t.ms > 0) || !std::isfinite(t.ms)) fail(name + ": a time is not positive");
    run.timings[name] = t;
  }
  find_limits(run);
  return run;
}

}  // namespace

std::string Case::text() const {
  return fmt::format("{} {} {} n:{}", op, pass, dtype, n);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Run read_run(const std::string& path) {
  std::stringstream text;
  text << open(path).rdbuf();
  try {
    return run_of(parse_json(text.str()), path);
  } catch (const json::exception&) {
    fail(path + " is not what quipu-bench writes with --benchmark_out");
  }
}

Peers read_peers(const std::vector<std::string>& paths) {
  std::map<Case, std::map<std::string, std::vector<double>>> times;
  Peers peers;
  for (const std::string& path : paths) {
    std::ifstream file = open(path);
    int number_of_line = 0;
    for (std::string line; std::getline(file, line);) {
      ++number_of_line;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      try {
        const json row = parse_json(line);
        if (row.contains("version")) peers.versions[row.at("peer")] = row["version"];
        if (row.contains("version") && !row.contains("op")) continue;
        Case c{row.at("op"), row.at("pass"), row.at("dtype"), row.at("n")};
        std::string peer = row.at("peer");
        // Another way to the same result.
        const std::string naive = "_naive";
        if (const std::size_t at = c.op.find(naive); at != std::string::npos) {
          c.op.erase(at, naive.size());
          peer += " naive";
        }
        const double ms = row.at("ms").is_null() ? unknown : row["ms"].get<double>();
        if (!std::isnan(ms)) times[c][peer].push_back(ms);
      } catch (const json::exception& error) {
        fail(fmt::format("{}:{}: {}", path, number_of_line, error.what()));
      }
    }
  }
  for (const auto& [c, by_peer] : times) {
    for (const auto& [peer, ms] : by_peer) peers.ms[c][peer] = median(ms);
  }
  return peers;
}

std::map<Case, Timing> cases_of(const Run& run) {
  std::map<Case, Timing> cases;
  for (const auto& [name, timing] : run.timings) {
    Case c;
    if (!parse_name(name, c)) continue;
    if (c.pass == "bwd" && c.op == "flao") continue;
    if (c.pass == "bwd" && c.op == "flao_keep_kv_and_qkv") c.op = "flao";
    cases[c] = timing;
  }
  return cases;
}

}  // namespace quipu::bench::report
