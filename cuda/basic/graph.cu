// A step of training as a CUDA graph, for StepGraph: a stream of its own is captured, and replayed
// by one launch. What changes from one replay to the next, such as learning rates and positions of
// random numbers, lies in device memory; the first node of the graph is a kernel that writes it
// from its arguments, which every replay sets anew: they are copied then, so that no replay in
// flight sees those of a later one.
//
// sass set_numbers: forbid LD.E ST.E; registers 32; shared 0
#include <algorithm>
#include <optional>

#include "quipu/core/error.h"
#include "quipu/core/graph/step_recorder.h"
#include "quipu/cuda/runtime/blas.h"
#include "quipu/cuda/runtime/index_errors.h"
#include "quipu/cuda/runtime/memory.h"
#include "quipu/cuda/runtime/run.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

struct Numbers {
  std::uint64_t values[DeviceGraph::most_numbers];
};

__global__ void __launch_bounds__(DeviceGraph::most_numbers)
    set_numbers(Numbers numbers, std::uint64_t* to) {
  to[threadIdx.x] = numbers.values[threadIdx.x];
}

class CudaGraph final : public DeviceGraph {
 public:
  /// Its stream has scratch memory that nobody else uses.
  explicit CudaGraph(int device) : device_(device), number_(open_stream(device)) {
    try {
      void* memory = nullptr;
      check_cuda(cudaMalloc(&memory, sizeof(Numbers)), "cudaMalloc");
      numbers_ = static_cast<std::uint64_t*>(memory);
      checks_.emplace(device);
      capture_.emplace(device, number_);
      const Queue queue(device);
      { const Blas made_before(queue, View()); }  // as is the scratch memory
      check_cuda(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeRelaxed),
                 "cudaStreamBeginCapture");
      is_capturing_ = true;
      run(queue, set_numbers, 1, most_numbers, 0, Numbers{}, numbers_);
    } catch (...) {
      release();
      throw;
    }
  }
  ~CudaGraph() override { release(); }

  std::uint64_t* numbers() const override { return numbers_; }
  std::unique_ptr<MemorySource> make_source() override { return make_graph_memory(device_); }

  void end() override {
    check_cuda(end_capture(), "cudaStreamEndCapture");
    std::size_t count = 1;
    check_cuda(cudaGraphGetRootNodes(graph_, &first_, &count), "cudaGraphGetRootNodes");
    ensure(count == 1, "the captured graph has ", count, " first nodes");
    check_cuda(cudaGraphInstantiateWithFlags(&exec_, graph_, 0), "cudaGraphInstantiate");
  }

  void replay(std::span<const std::uint64_t> values) override {
    const Queue queue(device_);
    Numbers numbers{};
    std::copy(values.begin(), values.end(), numbers.values);
    void* arguments[] = {&numbers, &numbers_};
    cudaKernelNodeParams parameters{};
    check_cuda(cudaGraphKernelNodeGetParams(first_, &parameters), "cudaGraphKernelNodeGetParams");
    parameters.kernelParams = arguments;
    check_cuda(cudaGraphExecKernelNodeSetParams(exec_, first_, &parameters),
               "cudaGraphExecKernelNodeSetParams");
    check_cuda(cudaGraphLaunch(exec_, queue.stream), "cudaGraphLaunch");
    checks_->queued(queue);
    used_ |= std::uint64_t{1} << queue.number;
  }

 private:
  cudaError_t end_capture() {
    capture_.reset();
    if (checks_) checks_->end();
    if (!std::exchange(is_capturing_, false)) return cudaSuccess;
    const cudaError_t error = cudaStreamEndCapture(stream_of(device_, number_), &graph_);
    if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
    return error;
  }

  /// What replays use is given to others only after them.
  void release() noexcept {
    static_cast<void>(end_capture());
    try {
      wait_for_streams(device_, used_);
    } catch (const Error&) {  // the device has failed, and the next call that can throw says so
    }
    if (exec_) static_cast<void>(cudaGraphExecDestroy(exec_));
    if (graph_) static_cast<void>(cudaGraphDestroy(graph_));
    close_stream(device_, number_);
    if (numbers_ && cudaFree(numbers_) != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  int device_, number_;
  bool is_capturing_ = false;
  std::uint64_t* numbers_ = nullptr;
  std::uint64_t used_ = 0;  // streams that replays were queued on, a bit each
  std::optional<CaptureScope> capture_;
  std::optional<RecordedChecks> checks_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphNode_t first_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

std::unique_ptr<DeviceGraph> make_graph(int device) {
  return std::make_unique<CudaGraph>(device);
}

}  // namespace
}  // namespace on_cuda

void register_cuda_graph() {
  provide_graphs(on_cuda::make_graph);
}

}  // namespace quipu::detail
