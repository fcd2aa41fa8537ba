// Host memory is pageable, which asynchronous copies cannot use. So copies go in chunks through a
// double buffer of pinned memory, one a device: while one half is in flight, the host fills or
// empties the other.
#include "copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "index_errors.h"
#include "streams.h"

namespace quipu::detail::on_cuda {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

struct Buffer {
  char* data = nullptr;
  cudaEvent_t done = nullptr;  // the copy that used it last
};

struct Staging {
  std::mutex mutex;
  std::array<Buffer, 2> buffers;

  void make() {
    for (Buffer& buffer : buffers) {
      if (buffer.data) continue;
      void* data = nullptr;
      check_cuda(cudaEventCreateWithFlags(&buffer.done, cudaEventDisableTiming), "cudaEventCreate");
      check_cuda(cudaHostAlloc(&data, chunk_bytes, cudaHostAllocDefault), "cudaHostAlloc");
      buffer.data = static_cast<char*>(data);
    }
  }
};

Staging& staging_of(int device) {
  static auto* all = new std::array<Staging, Device::max_index>;
  return (*all)[static_cast<std::size_t>(device)];
}

std::size_t bytes_of(const View& v) {
  return static_cast<std::size_t>(v.numel()) * size_of(v.dtype);
}

void wait_for(const Buffer& buffer) {
  check_cuda(cudaEventSynchronize(buffer.done), "cudaEventSynchronize");
}

}  // namespace

void upload(View on_device, View on_host) {
  const Queue queue(on_device);
  Staging& staging = staging_of(queue.device);
  const std::lock_guard lock(staging.mutex);
  staging.make();
  const std::size_t bytes = bytes_of(on_device);
  for (std::size_t done = 0, i = 0; done < bytes; done += chunk_bytes, ++i) {
    const std::size_t count = std::min(chunk_bytes, bytes - done);
    const Buffer& buffer = staging.buffers[i % 2];
    wait_for(buffer);
    std::memcpy(buffer.data, on_host.as<char>() + done, count);
    check_cuda(cudaMemcpyAsync(on_device.as<char>() + done, buffer.data, count,
                               cudaMemcpyHostToDevice, queue.stream),
               "cudaMemcpyAsync (to the device)");
    check_cuda(cudaEventRecord(buffer.done, queue.stream), "cudaEventRecord");
  }
}

void download(View on_device, View on_host) {
  const Queue queue(on_device);
  {
    Staging& staging = staging_of(queue.device);
    const std::lock_guard lock(staging.mutex);
    staging.make();
    const std::size_t bytes = bytes_of(on_device), chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
    const auto size_of_chunk = [&](std::size_t i) {
      return std::min(chunk_bytes, bytes - i * chunk_bytes);
    };
    for (std::size_t i = 0; i <= chunks; ++i) {
      const Buffer& buffer = staging.buffers[i % 2];
      if (i < chunks) {
        wait_for(buffer);  // an upload on another stream may still read it
        check_cuda(cudaMemcpyAsync(buffer.data, on_device.as<char>() + i * chunk_bytes,
                                   size_of_chunk(i), cudaMemcpyDeviceToHost, queue.stream),
                   "cudaMemcpyAsync (to the host)");
        check_cuda(cudaEventRecord(buffer.done, queue.stream), "cudaEventRecord");
      }
      if (i == 0) continue;
      const Buffer& before = staging.buffers[(i - 1) % 2];
      wait_for(before);
      std::memcpy(on_host.as<char>() + (i - 1) * chunk_bytes, before.data, size_of_chunk(i - 1));
    }
  }
  throw_index_errors(queue.device);
}

}  // namespace quipu::detail::on_cuda
