// Graphs of the CUDA runtime API: what a stream was asked for while it was captured, queued again
// at each launch. Checks and counts see the same work as without a graph.
#include <mutex>

#include "../checks/report.h"
#include "../count.h"
#include "runtime.h"
#include "stream.h"

namespace quipu::emulator {

/// A copy of a graph that can be launched; nodes in the order of the graph's.
struct GraphExec {
  int device = 0;
  std::vector<std::pair<const GraphNode*, GraphNode>> nodes;
};

}  // namespace quipu::emulator

using namespace quipu::emulator;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (const cudaError_t error = device_fault()) return error;
  if (stream == nullptr || stream == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
  const std::lock_guard guard(device_lock());
  if (spoils_capture(*stream, "cudaStreamBeginCapture")) return cudaErrorStreamCaptureUnsupported;
  stream->capture = std::make_unique<Graph>();
  stream->capture->device = stream->device;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard guard(device_lock());
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  const std::unique_ptr<Graph> captured = std::move(stream->capture);
  if (captured->spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = new Graph(std::move(*captured));
  return cudaSuccess;
}

cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  // One stream is a chain. Notes are the emulator's own, and no nodes for anybody else.
  std::size_t found = 0;
  for (const auto& node : graph->nodes) {
    if (!node->work) continue;
    if (nodes != nullptr && *count > 0) nodes[0] = node.get();
    found = 1;
    break;
  }
  *count = found;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long) {
  if (const cudaError_t error = device_fault()) return error;
  *exec = new GraphExec;
  (*exec)->device = graph->device;
  for (const auto& node : graph->nodes) (*exec)->nodes.emplace_back(node.get(), *node);
  return cudaSuccess;
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* parameters) {
  *parameters = {};
  return node->rebuild ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  const std::lock_guard guard(device_lock());
  for (auto& [original, copy] : exec->nodes) {
    if (original != node || !copy.rebuild) continue;
    copy.work = copy.rebuild(parameters->kernelParams);
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = device_fault()) return error;
  const std::lock_guard guard(device_lock());
  if (or_default(stream).device != exec->device) {
    report_host("invalid launch", "a graph of device " + std::to_string(exec->device) +
                                      " is launched on a stream of another device");
    set_error(cudaErrorInvalidResourceHandle);
    return cudaErrorInvalidResourceHandle;
  }
  count_call(HostCall::graph);
  for (const auto& [original, node] : exec->nodes) {
    if (node.work) {
      submit(stream, node.work);
    } else {
      submit_note(stream, node.note);
    }
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return device_fault();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;  // what was launched has copies of what it needs
  return device_fault();
}
