// Making an event takes the host microseconds, so those that are done wait in a pool.
#include "timing.h"

#include <array>
#include <cmath>
#include <mutex>
#include <vector>

#include "quipu/core/report/device_timing.h"
#include "streams.h"

namespace quipu::detail::on_cuda {
namespace {

struct EventPool {
  std::mutex mutex;
  std::vector<cudaEvent_t> events;
};

EventPool& pool_of(int device) {
  static auto* all = new std::array<EventPool, Device::max_index>;  // left to the process
  return (*all)[static_cast<std::size_t>(device)];
}

cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

void* make_event(int device) {
  {
    EventPool& pool = pool_of(device);
    const std::lock_guard lock(pool.mutex);
    if (!pool.events.empty()) {
      const cudaEvent_t event = pool.events.back();
      pool.events.pop_back();
      return event;
    }
  }
  check_device(device);
  use_device(device);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}

void release_event(int device, void* event) noexcept {
  EventPool& pool = pool_of(device);
  const std::lock_guard lock(pool.mutex);
  pool.events.push_back(event_of(event));
}

void set_event(int device, void* event) {
  use_device(device);
  check_cuda(cudaEventRecord(event_of(event), stream_of(device, current_stream_number(device))),
             "cudaEventRecord");
}

void wait_for_event(void* event) {
  check_cuda(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}

std::int64_t ns_between(void* earlier, void* later) {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event_of(earlier), event_of(later)),
             "cudaEventElapsedTime");
  return std::llround(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace

void register_timing() {
  provide_timing({make_event, release_event, set_event, wait_for_event, ns_between});
}

}  // namespace quipu::detail::on_cuda
