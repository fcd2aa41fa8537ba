// Recordings in the Chrome trace format: spans are complete events ("X"), memory is a counter ("C")
// with one series a category.
#include <nlohmann/json.hpp>
#include <set>

#include "quipu/core/report/device_timing.h"
#include "quipu/core/report/recording.h"

namespace quipu {
using namespace detail;
namespace {

using Json = nlohmann::ordered_json;

/// One event a line. Names that are no UTF-8 are mended, not refused.
std::string line(const Json& event) {
  return event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// To the nanosecond.
double microseconds(std::int64_t ns) {
  return static_cast<double>(ns) / 1e3;
}

std::string event_of(const Span& span, std::int64_t start_ns) {
  const std::string scope = scope_path(span.scope);
  return line({{"ph", "X"},
               {"pid", 1},
               {"tid", 1},
               {"cat", span.op ? "operator" : "scope"},
               {"name", span.op ? span.op : scope},
               {"ts", microseconds(span.start_ns - start_ns)},
               {"dur", microseconds(span.end_ns - span.start_ns)},
               {"args", {{"scope", scope}}}});
}

/// When a device ran it: a row of its own below those of the host.
std::string device_event_of(const Span& span, std::int64_t start_ns) {
  return line({{"ph", "X"},
               {"pid", 1},
               {"tid", 2 + span.on_device->device().index()},
               {"cat", "device"},
               {"name", span.op},
               {"ts", microseconds(span.on_device->start_ns() - start_ns)},
               {"dur", microseconds(span.on_device->duration_ns())},
               {"args", {{"scope", scope_path(span.scope)}}}});
}

std::string event_of(const std::string& counter, std::int64_t ns, const CategoryBytes& bytes) {
  Json series;
  for (int c = 0; c < category_count; ++c) {
    series[name_of(static_cast<Category>(c))] = bytes[static_cast<std::size_t>(c)];
  }
  return line(
      {{"ph", "C"}, {"pid", 1}, {"name", counter}, {"ts", microseconds(ns)}, {"args", series}});
}

std::string name_event(const char* what, const std::string& name, int row = 1) {
  return line({{"ph", "M"}, {"pid", 1}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}});
}

}  // namespace

std::string MemoryRecording::trace() const {
  const EventLog log = this->log();
  const std::string counter = "bytes live on " + to_string(device_);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" +
                    name_event("process_name", "quipu") + ",\n" +
                    name_event("thread_name", "operators");
  std::set<int> devices;
  for (const Span& span : spans_) {
    out += ",\n" + event_of(span, log.start_ns);
    if (!span.on_device) continue;
    out += ",\n" + device_event_of(span, log.start_ns);
    devices.insert(span.on_device->device().index());
  }
  for (const int index : devices) {
    const std::string name = to_string(Device(DeviceKind::cuda, index));
    out += ",\n" + name_event("thread_name", name, 2 + index);
  }
  CategoryBytes bytes = log.start;
  out += ",\n" + event_of(counter, 0, bytes);
  for (const MemoryEvent& event : log.events) {
    if (event.from >= 0) bytes[static_cast<std::size_t>(event.from)] -= event.bytes;
    if (event.to >= 0) bytes[static_cast<std::size_t>(event.to)] += event.bytes;
    out += ",\n" + event_of(counter, event.ns, bytes);
  }
  return out + "\n]}\n";
}

}  // namespace quipu
