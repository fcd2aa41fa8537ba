// Everything that a device has is made at first use and left to the process at its end: no exit
// order can hurt, because nothing is destroyed.
#include "streams.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "event.h"
#include "index_errors.h"
#include "quipu/core/error.h"
#include "quipu/core/graph/step_recorder.h"
#include "quipu/core/report/device_timing.h"

namespace quipu::detail::on_cuda {
namespace {

struct Slot {
  std::atomic<cudaStream_t> stream{nullptr};
  std::mutex scratch_mutex;
  void* scratch = nullptr;     // allocated at its first use
  cudaStream_t own = nullptr;  // while another one stands in `stream`
  bool taken = false;
};

struct DeviceStreams {
  std::mutex mutex;
  std::mutex adoption_mutex;  // held while an adopted stream of another thread is waited for
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

void order(cudaStream_t first, cudaStream_t then) {
  const Event event;
  event.record(first);
  event.let_wait(then);
}

/// The number of a stream that nobody has; the caller has it from now on.
int take_number(int device) {
  check_device(device);
  DeviceStreams& streams = streams_of(device);
  const std::lock_guard lock(streams.mutex);
  int number = 1;
  while (number < most_streams && slot_of(device, number).taken) ++number;
  check(number < most_streams, "device cuda:", device, " has ", most_streams,
        " streams already; let some go first");
  slot_of(device, number).taken = true;
  return number;
}

void free_number(int device, int number) {
  const std::lock_guard lock(streams_of(device).mutex);
  slot_of(device, number).taken = false;
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

void wait_for_streams(int device, std::uint64_t numbers) {
  use_device(device);
  const int current = current_stream_number(device);
  const cudaStream_t then = stream_of(device, current);
  const std::lock_guard lock(streams_of(device).adoption_mutex);
  for (int number = 0; number < most_streams; ++number) {
    if (number == current || (numbers >> number & 1u) == 0) continue;
    order(stream_of(device, number), then);
  }
}

void synchronize(int device) {
  StepRecorder::refuse("a device is waited for");
  use_device(device);
  check_cuda(cudaStreamSynchronize(stream_of(device, current_stream_number(device))),
             "cudaStreamSynchronize");
  throw_index_errors(device);
}

int open_stream(int device) {
  const int number = take_number(device);
  static_cast<void>(stream_of(device, number));
  return number;
}

/// The slot keeps its CUDA stream: blocks that remember the number stay ordered.
void close_stream(int device, int number) {
  static_cast<void>(cudaStreamSynchronize(slot_of(device, number).stream.load()));
  free_number(device, number);
}

/// Blocks remember numbers, and the program destroys its stream some time. So the slot's own stream
/// comes before the adopted one, which takes its place, and after it when it is given back.
int adopt_stream(int device, void* stream) {
  const int number = take_number(device);
  try {
    use_device(device);
    Slot& slot = slot_of(device, number);
    slot.own = stream_of(device, number);
    const cudaStream_t theirs = stream ? static_cast<cudaStream_t>(stream) : cudaStreamLegacy;
    order(slot.own, theirs);
    order(stream_of(device, current_stream_number(device)), theirs);
    slot.stream.store(theirs, std::memory_order_release);
  } catch (...) {
    free_number(device, number);
    throw;
  }
  return number;
}

void give_back_stream(int device, int number) {
  Slot& slot = slot_of(device, number);
  try {
    use_device(device);
    const std::lock_guard lock(streams_of(device).adoption_mutex);
    order(slot.stream.load(), slot.own);
    slot.stream.store(slot.own, std::memory_order_release);
    order(slot.own, stream_of(device, current_stream_number(device)));
  } catch (const Error&) {  // the device has failed, and the next call that can throw says so
    slot.stream.store(slot.own, std::memory_order_release);
  }
  free_number(device, number);
}

int use_stream(int device, int number) {
  std::int8_t& current = current_numbers()[static_cast<std::size_t>(device)];
  return std::exchange(current, static_cast<std::int8_t>(number));
}

void order_streams(int device, int first, int then) {
  use_device(device);
  if (first != then) order(stream_of(device, first), stream_of(device, then));
}

namespace {

/// Behind the number that a captured stream took the place of on each device; 0 where none is.
std::array<int, Device::max_index>& replaced_numbers() noexcept {
  static thread_local std::array<int, Device::max_index> numbers{};
  return numbers;
}

}  // namespace

CaptureScope::CaptureScope(int device, int number)
    : device_(device), outer_(use_stream(device, number)) {
  replaced_numbers()[static_cast<std::size_t>(device)] = outer_ + 1;
}

CaptureScope::~CaptureScope() {
  use_stream(device_, outer_);
  replaced_numbers()[static_cast<std::size_t>(device_)] = 0;
}

int memory_stream_number(int device) noexcept {
  const int replaced = replaced_numbers()[static_cast<std::size_t>(device)];
  return replaced > 0 ? replaced - 1 : current_stream_number(device);
}

Queue::Queue(int on_device) : device(on_device), number(current_stream_number(on_device)) {
  use_device(device);
  stream = stream_of(device, number);
  note_device_work(device);
}

Scratch::Scratch(const Queue& queue) : lock_(slot_of(queue.device, queue.number).scratch_mutex) {
  void*& memory = slot_of(queue.device, queue.number).scratch;
  if (!memory) check_cuda(cudaMalloc(&memory, scratch_bytes), "cudaMalloc");
  data_ = memory;
}

}  // namespace quipu::detail::on_cuda
