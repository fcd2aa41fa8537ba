#include "quipu/autograd/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>

#include "quipu/autograd/tensor_state.h"
#include "quipu/core/report/recording.h"

namespace quipu {
using namespace detail;
namespace {

constexpr std::size_t knots_shown = 20;

/// Keeps the knots of the largest tape that is walked on this thread while it lives.
class WatchTapes {
 public:
  WatchTapes() : outer_(watch_tapes(&watch_)) {}
  ~WatchTapes() { watch_tapes(outer_); }
  WatchTapes(const WatchTapes&) = delete;
  WatchTapes& operator=(const WatchTapes&) = delete;

  std::vector<KnotMemory> largest() {
    if (watch_.knots.size() > knots_shown) watch_.knots.resize(knots_shown);
    return std::move(watch_.knots);
  }

 private:
  TapeWatch watch_;
  TapeWatch* outer_;
};

}  // namespace

MemoryPlan plan(const std::function<void(Device)>& step, std::size_t capacity,
                const PlanOptions& options) {
  check(options.device.is_meta(), "plan: the device is ", options.device,
        ", but a meta device is wanted, such as meta:cuda");
  MemoryPlan result;
  release_cached(options.device);  // what is reserved then is this run's
  WatchTapes tapes;
  const PeakMemory peak(options.device);
  std::optional<MemoryRecording> recording;
  if (options.timeline) recording.emplace(options.device);
  step(options.device);
  result.report = recording ? recording->report() : peak.report();
  result.report.knots = tapes.largest();
  result.peak = result.report.bytes;
  result.capacity = capacity;
  result.fits = result.peak <= capacity;
  return result;
}

std::string MemoryPlan::text() const {
  const std::size_t apart = fits ? capacity - peak : peak - capacity;
  std::string out =
      fmt::format("{} at the peak, {} there: {}\n", human_bytes(peak), human_bytes(capacity),
                  fits ? fmt::format("fits, {} to spare", human_bytes(apart))
                       : fmt::format("does not fit, {} too much", human_bytes(apart)));
  out += report.text();
  if (!report.knots.empty()) out += "  largest knots\n";
  for (std::size_t i = 0; i < std::min<std::size_t>(report.knots.size(), 5); ++i) {
    const KnotMemory& k = report.knots[i];
    out += fmt::format("    {:>11}  {:<16} {:<24} {}\n", human_bytes(k.saved), k.op,
                       k.scope.empty() ? "-" : k.scope, k.output);
  }
  if (fits) return out;
  out += "  what would help\n";
  for (const MemoryAdvice& a : report.advice()) {
    out += fmt::format("    {:>11}  less with {}\n", human_bytes(a.saves), a.what);
  }
  return out;
}

std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan) {
  return out << plan.text();
}

}  // namespace quipu
