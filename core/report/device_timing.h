#pragma once
// Points in the order of a device's work, and when the device got there. Internal to the library
// and to benchmarks.
#include <cstdint>
#include <memory>

#include "quipu/core/context.h"
#include "quipu/core/device.h"

namespace quipu::detail {

/// A point among the work that this thread gives a device. Between two of them the host calls
/// nothing that waits, so that what is measured is the device's work alone.
class TimeMark {
 public:
  explicit TimeMark(const Device& device);
  ~TimeMark();
  TimeMark(const TimeMark&) = delete;
  TimeMark& operator=(const TimeMark&) = delete;

  /// Here: after all that this thread's stream was given.
  void set();
  /// Waits until the device gets here.
  void wait() const;
  /// Nanoseconds from another mark of the device to this one. Waits for both.
  std::int64_t ns_since(const TimeMark& earlier) const;
  const Device& device() const { return device_; }

 private:
  Device device_;
  void* event_ = nullptr;     // the back end's
  std::int64_t host_ns_ = 0;  // where there is none
};

/// From the first to the last kernel of an operator.
class DeviceSpan {
 public:
  DeviceSpan(std::shared_ptr<const TimeMark> origin, std::int64_t origin_ns,
             std::shared_ptr<const TimeMark> start);
  const Device& device() const { return end_.device(); }
  /// By now_ns(); waits for the device.
  std::int64_t start_ns() const { return origin_ns_ + start_->ns_since(*origin_); }
  std::int64_t duration_ns() const { return end_.ns_since(*start_); }

 private:
  std::shared_ptr<const TimeMark> origin_, start_;
  std::int64_t origin_ns_;  // when the device got to the origin, on the host's clock
  TimeMark end_;
};

/// Of the operator that this thread runs, until now; null where no device times it.
std::shared_ptr<const DeviceSpan> device_span();

void begin_device_span(int device);
/// Called by a back end before it gives a device work.
inline void note_device_work(int device) {
  const ThreadContext& context = thread_context();
  if (context.device_timing && context.device_start < 0) [[unlikely]]
    begin_device_span(device);
}

/// What a back end provides: events with a time.
struct TimingFunctions {
  void* (*make)(int device) = nullptr;
  void (*release)(int device, void* event) noexcept = nullptr;
  void (*set)(int device, void* event) = nullptr;
  void (*wait)(void* event) = nullptr;
  std::int64_t (*ns_between)(void* earlier, void* later) = nullptr;
};
void provide_timing(const TimingFunctions& cuda);

}  // namespace quipu::detail
