#include "memory.h"

#include <algorithm>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/error.h"
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
    const InOrder order(*this);
    const Queue queue(device_);
    check_cuda(cudaMemsetAsync(data, value, bytes, queue.stream), "cudaMemsetAsync");
  }

  std::uint64_t lane() const noexcept override { return std::uint64_t{1} << stream_number(); }
  void wait_for(std::uint64_t lanes) override {
    const InOrder order(*this);
    wait_for_streams(device_, lanes);
  }

#ifdef QUIPU_EMULATE
  /// The emulator checks bounds and first reads of each block, not of the segment it lies in.
  void opened(void* data, std::size_t bytes, std::size_t requested) override {
    const InOrder order(*this);
    emulator::declare_block(data, bytes, requested, Queue(device_).stream);
  }
  void closed(void* data, std::uint64_t lanes) override {
    const InOrder order(*this);
    wait_for_streams(device_, lanes);  // none of them may find it closed too early
    emulator::retire_block(data, Queue(device_).stream);
  }
#endif

 protected:
  /// In whose order blocks are taken and given back.
  virtual int stream_number() const noexcept {
    return memory_stream_number(device_);
  }
  int device() const {
    return device_;
  }

 private:
  /// While it lives, this thread works on that stream.
  class InOrder {
   public:
    explicit InOrder(const DeviceSource& source)
        : device_(source.device_), outer_(use_stream(device_, source.stream_number())) {}
    ~InOrder() { use_stream(device_, outer_); }
    InOrder(const InOrder&) = delete;
    InOrder& operator=(const InOrder&) = delete;

   private:
    int device_, outer_;
  };
  int device_;
};

class GraphSource final : public DeviceSource {
 public:
  using DeviceSource::DeviceSource;

  void* acquire(std::size_t bytes) override {
    const OpScope op("StepGraph");
    try {
      segments_.push_back(
          allocator().allocate(bytes, Category::workspace, {static_cast<std::int64_t>(bytes)}));
    } catch (const OutOfMemory&) {
      return nullptr;
    }
    return segments_.back()->data;
  }
  void release(void* data, std::size_t bytes) noexcept override {
#ifdef QUIPU_EMULATE
    try {
      opened(data, bytes, bytes);  // one block again
    } catch (const Error&) {  // the device has failed, and the next call that can throw says so
    }
#endif
    const auto segment = std::find_if(segments_.begin(), segments_.end(),
                                      [&](const Block* block) { return block->data == data; });
    allocator().free(*segment);
    segments_.erase(segment);
  }

  bool keeps() const override {
    return true;
  }

 protected:
  int stream_number() const noexcept override {
    return current_stream_number(device());
  }

 private:
  CachingAllocator& allocator() const {
    return allocator_of(Device(DeviceKind::cuda, device()));
  }
  std::vector<Block*> segments_;
};

}  // namespace

std::unique_ptr<MemorySource> make_memory_source(int index) {
  check_device(index);
  return std::make_unique<DeviceSource>(index);
}

std::unique_ptr<MemorySource> make_graph_memory(int index) {
  return std::make_unique<GraphSource>(index);
}

}  // namespace quipu::detail::on_cuda
