// Host memory is pageable, which asynchronous copies cannot use. So copies go in chunks through a
// double buffer of pinned memory, one a device: while one half is in flight, the host fills or
// empties the other. Small uploads lie side by side in one half, so that the tensors of a batch do
// not wait for each other behind the work of the step before.
#include "copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>

#include "event.h"
#include "index_errors.h"
#include "pinned.h"
#include "quipu/core/graph/step_recorder.h"
#include "streams.h"

namespace quipu::detail::on_cuda {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{4} << 20, alignment = 512;

struct Buffer {
  char* data = nullptr;
  std::optional<Event> done;  // the copy that used it last
  std::size_t used = 0;       // bytes that copies on `stream` may still read
  cudaStream_t stream = nullptr;
};

struct Staging {
  std::mutex mutex;
  std::array<Buffer, 2> buffers;
  std::size_t turn = 0;

  void make() {
    for (Buffer& buffer : buffers) {
      if (buffer.data) continue;
      void* data = nullptr;
      if (!buffer.done) buffer.done.emplace();
      check_cuda(cudaHostAlloc(&data, chunk_bytes, cudaHostAllocPortable), "cudaHostAlloc");
      buffer.data = static_cast<char*>(data);
    }
  }
  /// The buffer that was used longer ago, when nobody uses it any more.
  Buffer& next() {
    Buffer& buffer = buffers[++turn % 2];
    if (!buffer.done->reached()) buffer.done->wait();
    buffer.used = 0;
    return buffer;
  }
  /// A buffer with that many free bytes, of which copies on the stream alone are in flight.
  Buffer& with_space(std::size_t bytes, cudaStream_t stream) {
    Buffer& buffer = buffers[turn % 2];
    const bool fits = buffer.used + bytes <= chunk_bytes;
    return fits && (buffer.used == 0 || buffer.stream == stream) ? buffer : next();
  }
};

Staging& staging_of(int device) {
  static auto* all = new std::array<Staging, Device::max_index>;
  return (*all)[static_cast<std::size_t>(device)];
}

std::size_t bytes_of(const View& v) {
  return static_cast<std::size_t>(v.numel()) * size_of(v.dtype);
}

}  // namespace

void upload(View on_device, View on_host) {
  StepRecorder::refuse("values are copied from the host");
  const Queue queue(on_device);
  Staging& staging = staging_of(queue.device);
  const std::lock_guard lock(staging.mutex);
  staging.make();
  const std::size_t bytes = bytes_of(on_device);
  for (std::size_t done = 0; done < bytes; done += chunk_bytes) {
    const std::size_t count = std::min(chunk_bytes, bytes - done);
    Buffer& buffer = staging.with_space(count, queue.stream);
    char* at = buffer.data + buffer.used;
    buffer.used += (count + alignment - 1) / alignment * alignment;
    buffer.stream = queue.stream;
    std::memcpy(at, on_host.as<char>() + done, count);
    check_cuda(cudaMemcpyAsync(on_device.as<char>() + done, at, count, cudaMemcpyHostToDevice,
                               queue.stream),
               "cudaMemcpyAsync (to the device)");
    buffer.done->record(queue.stream);
  }
}

void upload_async(const View& on_device, const View& on_host) {
  StepRecorder::refuse("values are copied from the host");
  const Queue queue(on_device);
  const PinnedUse use(on_host.data);
  if (!use) return upload(on_device, on_host);
  check_cuda(cudaMemcpyAsync(on_device.data, on_host.data, bytes_of(on_device),
                             cudaMemcpyHostToDevice, queue.stream),
             "cudaMemcpyAsync (to the device)");
  use.until_done(queue);
}

void download(View on_device, View on_host) {
  StepRecorder::refuse("values are read");
  const Queue queue(on_device);
  {
    Staging& staging = staging_of(queue.device);
    const std::lock_guard lock(staging.mutex);
    staging.make();
    const std::size_t bytes = bytes_of(on_device);
    char* const to = on_host.as<char>();
    const Buffer* before = nullptr;  // in flight
    std::size_t first = 0, count = 0;
    const auto empty_it = [&] {
      if (!before) return;
      before->done->wait();
      std::memcpy(to + first, before->data, count);
    };
    for (std::size_t done = 0; done < bytes; done += chunk_bytes) {
      Buffer& buffer = staging.next();
      const std::size_t size = std::min(chunk_bytes, bytes - done);
      check_cuda(cudaMemcpyAsync(buffer.data, on_device.as<char>() + done, size,
                                 cudaMemcpyDeviceToHost, queue.stream),
                 "cudaMemcpyAsync (to the host)");
      buffer.done->record(queue.stream);
      empty_it();
      before = &buffer, first = done, count = size;
    }
    empty_it();
  }
  throw_index_errors(queue.device);
}

void copy_between_devices(const View& to, const View& from) {
  StepRecorder::refuse("values are copied between devices");
  const Queue source(from);  // which makes its device the current one
  const Event written;
  written.record(source.stream);
  const Queue target(to);
  written.let_wait(target.stream);
  check_cuda(cudaMemcpyPeerAsync(to.data, number_of(target.device), from.data,
                                 number_of(source.device), bytes_of(from), target.stream),
             "cudaMemcpyPeerAsync");
  const Event read;
  read.record(target.stream);
  read.let_wait(source.stream);  // or the memory could be given to somebody too early
}

}  // namespace quipu::detail::on_cuda
