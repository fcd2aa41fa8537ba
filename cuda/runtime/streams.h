#pragma once
// Streams: queues of work on a device. Every thread works on the main stream, number 0, unless it
// has chosen another. The allocator keeps one bit for each that may still use a block, and a block
// that goes to another stream waits for them.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>

#include "devices.h"
#include "error.h"
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cuda {

/// Streams of one device at most, the main stream included.
inline constexpr int most_streams = 64;
/// Scratch memory of each stream, for partial sums and the like: of fixed size and outside the
/// ledger.
inline constexpr std::size_t scratch_bytes = std::size_t{512} << 10;

// What core/devices.h asks for.
int open_stream(int device);
void close_stream(int device, int number);
int use_stream(int device, int number);
int adopt_stream(int device, void* stream);
void give_back_stream(int device, int number);
void order_streams(int device, int first, int then);

/// The number of this thread's stream on a device; 0 is the main one. Calls nothing.
int current_stream_number(int device) noexcept;
/// The CUDA stream; created at its first use.
cudaStream_t stream_of(int device, int number);
/// Makes this thread's stream wait for all work queued so far on the streams whose bits are set.
void wait_for_streams(int device, std::uint64_t numbers);
/// Waits for this thread's stream; index errors are thrown here.
void synchronize(int device);

/// While it lives, this thread works on a stream that is being captured. Memory of the device that
/// is taken or given back meanwhile belongs to the order of the stream that it worked on before,
/// because nothing can wait for a captured stream.
class CaptureScope {
 public:
  CaptureScope(int device, int number);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  int device_, outer_;
};
/// The number of the stream in whose order this thread takes memory of a device.
int memory_stream_number(int device) noexcept;

/// Where the kernels of one call run: the device of a view, on this thread's stream.
class Queue {
 public:
  explicit Queue(const View& view) : Queue(view.device.index()) {}
  explicit Queue(int on_device);

  int device, number;
  cudaStream_t stream;
};

/// The scratch memory of a stream while this lives, which is until the last launch that uses it is
/// queued: host threads that work on one stream take turns, or the launches of one would come
/// between those of another.
class Scratch {
 public:
  explicit Scratch(const Queue& queue);
  void* data() const { return data_; }

 private:
  std::unique_lock<std::mutex> lock_;
  void* data_;
};

}  // namespace quipu::detail::on_cuda
