#pragma once
// What happens to a device's memory, event by event, and which operators run meanwhile.
//
//   MemoryRecording recording(device);
//   train_one_step();
//   recording.report().html();   // who held the peak, and the way there
//   recording.trace();           // for chrome://tracing and ui.perfetto.dev
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/memory/memory.h"

namespace quipu {
namespace detail {

/// An allocation (from nothing), a release (to nothing) or a change of category.
struct MemoryEvent {
  static constexpr std::int8_t nothing = -1;
  std::int64_t ns = 0;                       // since the recording began
  std::size_t bytes = 0;                     // of the block, rounded up to 512
  std::size_t live = 0;                      // the allocator's own counter afterwards
  const char* op = nullptr;                  // that asked for the block
  std::int8_t from = nothing, to = nothing;  // categories
};

/// A recording as the allocator writes it.
struct EventLog {
  std::int64_t start_ns = 0;
  CategoryBytes start{};  // held when it began
  std::size_t most = 0;   // events; later ones are only counted
  std::size_t seen = 0;
  std::vector<MemoryEvent> events;
};

class DeviceSpan;

/// An operator that ran, or, without `op`, a scope that was open.
struct Span {
  const char* op = nullptr;
  ScopeId scope = 0;
  std::int64_t start_ns = 0, end_ns = 0;                  // by now_ns()
  std::shared_ptr<const DeviceSpan> on_device = nullptr;  // under DeviceTimes
};

}  // namespace detail

/// Records the memory of one device and the operators of this thread while it lives. Costs some
/// 50 ns an event or operator.
class MemoryRecording {
 public:
  explicit MemoryRecording(Device device = {}, std::size_t most_events = std::size_t{1} << 22);
  ~MemoryRecording();
  MemoryRecording(const MemoryRecording&) = delete;
  MemoryRecording& operator=(const MemoryRecording&) = delete;

  /// So far.
  detail::EventLog log() const;
  /// Operators and scopes of this thread that ended so far, in the order of their ends.
  const std::vector<detail::Span>& spans() const { return spans_; }
  /// Most live bytes so far, what was live at the start included.
  std::size_t peak() const { return peak_.bytes(); }

  /// Who held what at the recording's peak, with the timeline.
  MemoryReport report() const;
  /// Operators, scopes and memory on one timeline, in the Chrome trace format. Under DeviceTimes, a
  /// row for each device shows when it ran them.
  std::string trace() const;

 private:
  Device device_;
  PeakMemory peak_;
  detail::EventLog log_;
  std::vector<detail::Span> spans_;
  std::vector<detail::Span>* outer_spans_;
};

}  // namespace quipu
