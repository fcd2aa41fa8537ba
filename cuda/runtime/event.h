#pragma once
// A point in the work of a stream.
#include <cuda_runtime_api.h>

#include <utility>

#include "error.h"

namespace quipu::detail::on_cuda {

/// Belongs to the device that is current when it is made. It may be destroyed while streams wait
/// for it.
class Event {
 public:
  Event() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~Event() {
    if (event_) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  /// On a stream of the event's device.
  void record(cudaStream_t stream) const {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  /// Later work of the stream, on any device, comes after what was recorded.
  void let_wait(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  /// Whether it was reached; true if it was never recorded.
  bool reached() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // or a launch would be blamed
      return false;
    }
    check_cuda(error, "cudaEventQuery");
    return true;
  }
  /// The host waits.
  void wait() const { check_cuda(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace quipu::detail::on_cuda
