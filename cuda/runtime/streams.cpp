// Everything that a device has is made at first use and left to the process at its end: no exit
// order can hurt, because nothing is destroyed.
#include "streams.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "index_errors.h"
#include "quipu/core/error.h"
#include "quipu/core/report/device_timing.h"

namespace quipu::detail::on_cuda {
namespace {

struct Slot {
  std::atomic<cudaStream_t> stream{nullptr};
  std::atomic<void*> scratch{nullptr};
  bool taken = false;
};

struct DeviceStreams {
  std::mutex mutex;
  std::array<Slot, most_streams> slots;
};

DeviceStreams& streams_of(int device) {
  static auto* all = new std::array<DeviceStreams, Device::max_index>;
  return (*all)[static_cast<std::size_t>(device)];
}

Slot& slot_of(int device, int number) {
  return streams_of(device).slots[static_cast<std::size_t>(number)];
}

/// The current stream of this thread on each device.
std::array<std::int8_t, Device::max_index>& current_numbers() noexcept {
  static thread_local std::array<std::int8_t, Device::max_index> numbers{};
  return numbers;
}

class Event {
 public:
  Event() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

void order(cudaStream_t first, cudaStream_t then) {
  const Event event;
  check_cuda(cudaEventRecord(event, first), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(then, event, 0), "cudaStreamWaitEvent");
}

}  // namespace

int current_stream_number(int device) noexcept {
  return current_numbers()[static_cast<std::size_t>(device)];
}

cudaStream_t stream_of(int device, int number) {
  Slot& slot = slot_of(device, number);
  if (const cudaStream_t stream = slot.stream.load(std::memory_order_acquire)) return stream;
  const std::lock_guard lock(streams_of(device).mutex);
  if (const cudaStream_t stream = slot.stream.load()) return stream;
  use_device(device);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  slot.stream.store(stream, std::memory_order_release);
  return stream;
}

void* scratch_of(int device, int number) {
  Slot& slot = slot_of(device, number);
  if (void* scratch = slot.scratch.load(std::memory_order_acquire)) return scratch;
  const std::lock_guard lock(streams_of(device).mutex);
  if (void* scratch = slot.scratch.load()) return scratch;
  use_device(device);
  void* scratch = nullptr;
  check_cuda(cudaMalloc(&scratch, scratch_bytes), "cudaMalloc");
  slot.scratch.store(scratch, std::memory_order_release);
  return scratch;
}

void wait_for_streams(int device, std::uint64_t numbers) {
  use_device(device);
  const int current = current_stream_number(device);
  for (int number = 0; number < most_streams; ++number) {
    if (number == current || (numbers >> number & 1u) == 0) continue;
    order(stream_of(device, number), stream_of(device, current));
  }
}

void synchronize(int device) {
  use_device(device);
  check_cuda(cudaStreamSynchronize(stream_of(device, current_stream_number(device))),
             "cudaStreamSynchronize");
  throw_index_errors(device);
}

int open_stream(int device) {
  check_device(device);
  int number = 1;
  {
    DeviceStreams& streams = streams_of(device);
    const std::lock_guard lock(streams.mutex);
    while (number < most_streams && slot_of(device, number).taken) ++number;
    check(number < most_streams, "device cuda:", device, " has ", most_streams,
          " streams already; let some go first");
    slot_of(device, number).taken = true;
  }
  static_cast<void>(stream_of(device, number));
  return number;
}

/// The slot keeps its CUDA stream: blocks that remember the number stay ordered.
void close_stream(int device, int number) {
  static_cast<void>(cudaStreamSynchronize(slot_of(device, number).stream.load()));
  const std::lock_guard lock(streams_of(device).mutex);
  slot_of(device, number).taken = false;
}

int use_stream(int device, int number) {
  std::int8_t& current = current_numbers()[static_cast<std::size_t>(device)];
  return std::exchange(current, static_cast<std::int8_t>(number));
}

void order_streams(int device, int first, int then) {
  use_device(device);
  if (first != then) order(stream_of(device, first), stream_of(device, then));
}

Queue::Queue(int on_device) : device(on_device), number(current_stream_number(on_device)) {
  use_device(device);
  stream = stream_of(device, number);
  note_device_work(device);
}

}  // namespace quipu::detail::on_cuda
