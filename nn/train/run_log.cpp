#include "quipu/nn/train/run_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "quipu/core/error.h"
#include "quipu/core/text.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

/// How many bytes of a log are lines up to a step. One that was cut off in the middle is the end.
std::int64_t bytes_until(const std::string& path, std::int64_t last_step) {
  std::ifstream in(path);
  std::int64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer()) break;
    if (entry["step"].get<std::int64_t>() > last_step) break;
    bytes += static_cast<std::int64_t>(line.size()) + 1;
  }
  return bytes;
}

std::string rate_name(const std::string& unit) {
  return unit + "_per_second";
}

}  // namespace

void detail::check_metric_names(const std::vector<std::pair<std::string, double>>& extra,
                                const std::string& unit) {
  if (extra.empty()) return;
  std::vector<std::string> taken{"step",       "loss",    "lr",           "memory_bytes",
                                 "peak_bytes", "seconds", rate_name(unit)};
  for (const auto& entry : extra) {
    const bool fresh = std::find(taken.begin(), taken.end(), entry.first) == taken.end();
    check(fresh, "Progress: a metric cannot be called ", quoted_name(entry.first),
          ": a step has that already; give it another name");
    taken.push_back(entry.first);
  }
}

RunLog::RunLog(const std::string& path, std::int64_t first_step, const std::string& unit)
    : rate_name_(rate_name(unit)) {
  const std::int64_t kept = first_step > 0 ? bytes_until(path, first_step) : 0;
  file_.reset(std::fopen(path.c_str(), kept > 0 ? "r+" : "w"));
  const bool ok = file_ != nullptr && (kept == 0 || (ftruncate(fileno(file_.get()), kept) == 0 &&
                                                     std::fseek(file_.get(), 0, SEEK_END) == 0));
  check(ok, "cannot write the log ", path, ": ", std::string(std::strerror(errno)));
}

bool RunLog::write(const StepRecord& record) {
  if (!file_) return false;
  nlohmann::ordered_json entry;
  entry["step"] = record.step;
  if (record.loss) entry["loss"] = *record.loss;
  if (record.lr) entry["lr"] = *record.lr;
  for (const auto& [name, value] : record.extra) entry[name] = value;
  if (record.rate > 0) entry[rate_name_] = record.rate;
  entry["memory_bytes"] = record.memory;
  entry["peak_bytes"] = record.peak;
  entry["seconds"] = record.seconds;
  const auto not_utf8 = nlohmann::ordered_json::error_handler_t::replace;
  const std::string line = entry.dump(-1, ' ', false, not_utf8) + "\n";
  const bool ok = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                  std::fflush(file_.get()) == 0;
  if (!ok) file_.reset();
  return ok;
}

}  // namespace quipu::nn
