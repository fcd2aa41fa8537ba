#pragma once
// How a StepGraph records: what a thread allocates, launches and draws while it does. Internal to
// the library.
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/memory/allocator.h"
#include "quipu/core/random/random.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// What a back end provides: the work of one device from its construction to end(), by this thread,
/// which is not run but can be repeated.
class DeviceGraph {
 public:
  /// Words in device memory that a replay sets before anything else.
  static constexpr std::size_t most_numbers = 256;

  DeviceGraph() = default;
  virtual ~DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  virtual std::uint64_t* numbers() const = 0;
  /// Where the memory of the recorded work comes from.
  virtual std::unique_ptr<MemorySource> make_source() = 0;
  /// Recording is over; throws if the work cannot be repeated.
  virtual void end() = 0;
  virtual void replay(std::span<const std::uint64_t> numbers) = 0;
};
using GraphFactory = std::unique_ptr<DeviceGraph> (*)(int device);
void provide_graphs(GraphFactory cuda);

class StepRecorder {
 public:
  StepRecorder() = default;
  ~StepRecorder();
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  /// Throws, with what to do instead, while this thread records: `what` needs values.
  static void refuse(const char* what);

  /// Calls the function, then records it where it ran on a CUDA device; false where it did not.
  bool record(const std::function<void()>& step);
  void replay();
  MemoryReport memory() const { return pool_->report_peak(); }

  // Asked by whoever runs while this thread records.

  /// A kernel gets this operand: the device is used, and its memory is kept while the graph lives.
  void note_operand(const View& view);
  /// Where memory of a device comes from.
  CachingAllocator& allocator_for(Device device);
  /// Random numbers from where the generator is at each replay.
  PhiloxState draw(Generator& generator, std::uint64_t counters);
  /// A number that the host reads before each replay, f64 () on the device. A kernel that uses it
  /// instead of its value now sees every change.
  Tensor number(std::function<double()> read);

 private:
  struct Number {
    std::function<double()> read;
    double recorded;
    std::size_t at;
    bool used = false;
  };
  struct Draws {
    Generator* generator;
    PhiloxState before;          // the recording
    std::uint64_t counters = 0;  // that a step draws
    std::size_t at;
  };
  std::size_t reserve(std::size_t words);
  void restore_generators();

  Device device_;
  bool is_recording_ = false;    // not during the first call
  std::vector<Device> devices_;  // CUDA devices of the first call
  std::unique_ptr<DeviceGraph> graph_;
  CachingAllocator* pool_ = nullptr;
  std::vector<Block*> kept_;
  std::vector<Number> numbers_;
  std::vector<Draws> draws_;
  std::size_t reserved_ = 0;
};

}  // namespace quipu::detail
