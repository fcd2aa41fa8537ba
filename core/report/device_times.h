#pragma once
// How long operators take on a GPU, measured there.

namespace quipu {

/// While it lives, every operator that this thread gives a CUDA device is timed by the device
/// itself, from its first kernel to its last: `Tape::text()` and `MemoryRecording::trace()` show
/// those times. Without it they show how long the host took to queue the work, which is all that a
/// program without a profiler can know of it. Two events an operator, a few microseconds of the
/// host. On other devices the host's time is the time.
///
///   const DeviceTimes times;
///   Tape tape;
///   const Tensor loss = model(x);
///   std::cout << tape;
class DeviceTimes {
 public:
  DeviceTimes();
  ~DeviceTimes();
  DeviceTimes(const DeviceTimes&) = delete;
  DeviceTimes& operator=(const DeviceTimes&) = delete;

 private:
  bool outer_;
};

}  // namespace quipu
