#include "quipu/core/report/recording.h"

#include <algorithm>
#include <utility>

#include "quipu/core/memory/allocator.h"
#include "quipu/core/report/device_timing.h"

namespace quipu {
using namespace detail;
namespace {

/// Where operators of this thread are noted. Not in the thread's context: that is copied and
/// restored, and could outlive a recording.
thread_local std::vector<Span>* thread_spans = nullptr;

constexpr std::size_t most_points = 1000;

void apply(const MemoryEvent& event, CategoryBytes& bytes) {
  if (event.from >= 0) bytes[static_cast<std::size_t>(event.from)] -= event.bytes;
  if (event.to >= 0) bytes[static_cast<std::size_t>(event.to)] += event.bytes;
}

/// Of each group of events the one after which most was live, so that no peak is lost. Groups are
/// of equal numbers of events and, except on meta, where nothing takes time, cut at equal times as
/// well: a long pause leaves the rest its detail.
std::vector<TimelinePoint> thinned(const EventLog& log, bool by_time) {
  std::vector<TimelinePoint> points{{0, 0, log.start}};
  if (log.events.empty()) return points;
  const auto end = static_cast<double>(log.events.size()),
             end_ns = static_cast<double>(log.events.back().ns) + 1;
  const auto slots = static_cast<double>(by_time ? most_points / 2 : most_points);
  CategoryBytes bytes = log.start;
  std::size_t group = 0, most = 0;
  for (std::size_t i = 0; i < log.events.size(); ++i) {
    const MemoryEvent& event = log.events[i];
    apply(event, bytes);
    auto now = 1 + static_cast<std::size_t>(static_cast<double>(i) / end * slots);
    if (by_time) now += static_cast<std::size_t>(static_cast<double>(event.ns) / end_ns * slots);
    const TimelinePoint point{i + 1, static_cast<double>(event.ns) * 1e-9, bytes};
    if (now != group) {
      points.push_back(point);
      most = event.live;
    } else if (event.live > most) {
      points.back() = point;
      most = event.live;
    }
    group = now;
  }
  const TimelinePoint last{log.events.size(), static_cast<double>(log.events.back().ns) * 1e-9,
                           bytes};
  if (points.back().event != last.event) points.push_back(last);
  return points;
}

}  // namespace

void detail::note_span(const char* op, ScopeId scope, std::int64_t start_ns) noexcept {
  if (!thread_spans) return;
  const std::int64_t end_ns = now_ns();
  thread_spans->push_back({op, scope, start_ns, end_ns, nullptr});
  try {
    if (op) thread_spans->back().on_device = device_span();
  } catch (const std::exception&) {  // the device is lost; whoever asks it next is told
  }
}

void CachingAllocator::start(EventLog* log) {
  const std::lock_guard lock(mutex_);
  log->start = stats_.by_category;
  log->start_ns = now_ns();
  logs_.push_back(log);
}

void CachingAllocator::stop(EventLog* log) {
  const std::lock_guard lock(mutex_);
  std::erase(logs_, log);
}

EventLog CachingAllocator::copy_of(const EventLog& log) const {
  const std::lock_guard lock(mutex_);
  return log;
}

void CachingAllocator::note(const LedgerEntry& entry, int from, int to, std::int64_t now) noexcept {
  for (EventLog* log : logs_) {
    if (++log->seen > log->most) continue;
    log->events.push_back({now - log->start_ns, entry.bytes, stats_.current, entry.op,
                           static_cast<std::int8_t>(from), static_cast<std::int8_t>(to)});
  }
}

MemoryRecording::MemoryRecording(Device device, std::size_t most_events)
    : device_(device), peak_(device), outer_spans_(std::exchange(thread_spans, &spans_)) {
  log_.most = most_events;
  log_.events.reserve(std::min<std::size_t>(most_events, 4096));
  allocator_of(device).start(&log_);
  thread_context().tracing = true;
}

MemoryRecording::~MemoryRecording() {
  allocator_of(device_).stop(&log_);
  thread_spans = outer_spans_;
  thread_context().tracing = thread_spans != nullptr;
}

EventLog MemoryRecording::log() const {
  return allocator_of(device_).copy_of(log_);
}

MemoryReport MemoryRecording::report() const {
  const EventLog log = this->log();
  MemoryReport report = peak_.report();
  report.timeline = thinned(log, !device_.is_meta());
  std::size_t most = 0;
  for (const TimelinePoint& point : report.timeline) {
    std::size_t live = 0;
    for (const std::size_t bytes : point.bytes) live += bytes;
    if (live > most) {
      most = live;
      report.peak_event = point.event;
    }
  }
  return report;
}

}  // namespace quipu
