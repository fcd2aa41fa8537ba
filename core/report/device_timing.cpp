#include "quipu/core/report/device_timing.h"

#include <utility>
#include <vector>

#include "quipu/core/report/device_times.h"

namespace quipu {
using namespace detail;
namespace {

TimingFunctions on_cuda_device;

struct Start {
  int device;
  std::shared_ptr<TimeMark> mark;
};
/// Where a device's clock meets the host's.
struct Origin {
  int device;
  std::shared_ptr<TimeMark> mark;
  std::int64_t ns;
};
/// Of the operators that run now, and of the devices that this thread has timed.
struct Starts {
  std::vector<Start> running;
  std::vector<Origin> origins;

  const Origin& origin_of(int device) {
    for (const Origin& origin : origins) {
      if (origin.device == device) return origin;
    }
    auto mark = std::make_shared<TimeMark>(Device(DeviceKind::cuda, device));
    mark->set();
    mark->wait();
    return origins.emplace_back(Origin{device, std::move(mark), now_ns()});
  }
};
thread_local Starts starts;

}  // namespace

void detail::provide_timing(const TimingFunctions& cuda) {
  on_cuda_device = cuda;
}

TimeMark::TimeMark(const Device& device) : device_(device) {
  if (device.is_cuda()) event_ = on_cuda_device.make(device.index());
}

TimeMark::~TimeMark() {
  if (event_) on_cuda_device.release(device_.index(), event_);
}

void TimeMark::set() {
  if (event_) {
    on_cuda_device.set(device_.index(), event_);
  } else {
    host_ns_ = now_ns();
  }
}

void TimeMark::wait() const {
  if (event_) on_cuda_device.wait(event_);
}

std::int64_t TimeMark::ns_since(const TimeMark& earlier) const {
  if (!event_) return host_ns_ - earlier.host_ns_;
  earlier.wait();
  wait();
  return on_cuda_device.ns_between(earlier.event_, event_);
}

DeviceSpan::DeviceSpan(std::shared_ptr<const TimeMark> origin, std::int64_t origin_ns,
                       std::shared_ptr<const TimeMark> start)
    : origin_(std::move(origin)),
      start_(std::move(start)),
      origin_ns_(origin_ns),
      end_(start_->device()) {
  end_.set();
}

void detail::begin_device_span(int device) {
  ThreadContext& context = thread_context();
  if (!context.op) return;
  starts.origin_of(device);
  auto mark = std::make_shared<TimeMark>(Device(DeviceKind::cuda, device));
  mark->set();
  context.device_start = static_cast<std::int32_t>(starts.running.size());
  starts.running.push_back({device, std::move(mark)});
}

std::shared_ptr<const DeviceSpan> detail::device_span() {
  const ThreadContext& context = thread_context();
  if (context.device_start < 0) return nullptr;
  const Start& start = starts.running[static_cast<std::size_t>(context.device_start)];
  const Origin& origin = starts.origin_of(start.device);
  return std::make_shared<DeviceSpan>(origin.mark, origin.ns, start.mark);
}

void detail::end_device_span(ThreadContext& outer) noexcept {
  if (!outer.op) {
    starts.running.clear();
  } else if (outer.device_start < 0) {
    outer.device_start = thread_context().device_start;  // it began with this part of it
  }
}

DeviceTimes::DeviceTimes() : outer_(std::exchange(thread_context().device_timing, true)) {}

DeviceTimes::~DeviceTimes() {
  thread_context().device_timing = outer_;
}

}  // namespace quipu
