#include "memory.h"

#include "streams.h"
#ifdef QUIPU_EMULATE
#include "../emulator/emulator.h"
#endif

namespace quipu::detail::on_cuda {
namespace {

class DeviceSource : public MemorySource {
 public:
  explicit DeviceSource(int device) : device_(device) {}

  void* acquire(std::size_t bytes) override {
    use_device(device_);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return nullptr;
    }
    check_cuda(error, "cudaMalloc");
    return data;
  }

  /// cudaFree waits for the device, so whoever used the block is done with it. It fails where the
  /// driver was unloaded at the program's end, and tells of kernels that failed, which every later
  /// call does, too: neither is a reason to end the program in a destructor or an exit handler.
  void release(void* data, std::size_t) noexcept override {
    if (cudaFree(data) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  void fill(void* data, std::size_t bytes, unsigned char value) override {
    const Queue queue(device_);
    check_cuda(cudaMemsetAsync(data, value, bytes, queue.stream), "cudaMemsetAsync");
  }

  std::uint64_t lane() const noexcept override {
    return std::uint64_t{1} << current_stream_number(device_);
  }
  void wait_for(std::uint64_t lanes) override { wait_for_streams(device_, lanes); }

#ifdef QUIPU_EMULATE
  /// The emulator checks bounds and first reads of each block, not of the segment it lies in.
  void opened(void* data, std::size_t bytes, std::size_t requested) override {
    emulator::declare_block(data, bytes, requested, Queue(device_).stream);
  }
  void closed(void* data, std::uint64_t lanes) override {
    wait_for_streams(device_, lanes);  // none of them may find it closed too early
    emulator::retire_block(data, Queue(device_).stream);
  }
#endif

 private:
  int device_;
};

}  // namespace

std::unique_ptr<MemorySource> make_memory_source(int index) {
  check_device(index);
  return std::make_unique<DeviceSource>(index);
}

}  // namespace quipu::detail::on_cuda
