// Streams and events: work is reordered as CUDA allows, and a missing event is reported whatever
// the order of this run was.
#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

constexpr std::uint64_t seeds = 20;
constexpr int n = 256;

struct Streams {
  explicit Streams(unsigned flags) {
    cudaStreamCreateWithFlags(&first, flags);
    cudaStreamCreateWithFlags(&second, flags);
    cudaEventCreate(&event);
  }
  ~Streams() {
    cudaStreamDestroy(first);
    cudaStreamDestroy(second);
    cudaEventDestroy(event);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  cudaStream_t first, second;
  cudaEvent_t event;
};

bool order_reported() {
  for (const auto& report : emulator::reports()) {
    if (report.kind == "stream order") return true;
  }
  return false;
}

TEST_CASE("emulator: a missing event is reported under every seed, a present one never") {
  const Watched watched;
  int stale = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const bool with_event : {false, true}) {
      emulator::settings().seed = seed;
      emulator::clear_reports();
      CAPTURE(seed);
      CAPTURE(with_event);
      const Streams streams(cudaStreamNonBlocking);
      const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1)),
          z(std::vector<float>(n, 1));
      axpy(2, x.data(), y.data(), n, streams.first);
      cudaEventRecord(streams.event, streams.first);
      if (with_event) cudaStreamWaitEvent(streams.second, streams.event);
      axpy(1, y.data(), z.data(), n, streams.second);
      cudaStreamSynchronize(streams.second);
      cudaStreamSynchronize(streams.first);
      const float got = z.values()[0];
      if (with_event) CHECK(got == 4);
      if (!with_event && got != 4) ++stale;
      CHECK(order_reported() == !with_event);
    }
  }
  CHECK(stale > 0);  // the order really changes
}

TEST_CASE("emulator: copies and fills need events as kernels do") {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const bool with_event : {false, true}) {
      emulator::settings().seed = seed;
      emulator::clear_reports();
      CAPTURE(seed);
      const Streams streams(cudaStreamNonBlocking);
      const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
      axpy(2, x.data(), y.data(), n, streams.first);  // reads x, writes y
      cudaEventRecord(streams.event, streams.first);
      if (with_event) cudaStreamWaitEvent(streams.second, streams.event);
      cudaMemsetAsync(x.data(), 0, n * sizeof(float), streams.second);
      CHECK(order_reported() == !with_event);

      emulator::clear_reports();
      cudaMemcpyAsync(x.data(), y.data(), n * sizeof(float), cudaMemcpyDeviceToDevice,
                      streams.first);
      cudaEventRecord(streams.event, streams.first);
      if (with_event) cudaStreamWaitEvent(streams.second, streams.event);
      cudaMemsetAsync(y.data(), 0, n * sizeof(float), streams.second);
      CHECK(order_reported() == !with_event);
    }
  }
}

TEST_CASE("emulator: the host's wait orders what it launches later") {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    emulator::settings().seed = seed;
    const Streams streams(cudaStreamNonBlocking);
    const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
    axpy(2, x.data(), y.data(), n, streams.first);
    cudaEventRecord(streams.event, streams.first);
    if (seed % 2 == 0) cudaStreamSynchronize(streams.first);
    if (seed % 2 == 1) cudaEventSynchronize(streams.event);
    axpy(1, y.data(), x.data(), n, streams.second);
    cudaStreamSynchronize(streams.second);
    CHECK(x.values()[0] == 4);
    CHECK(emulator::report_text() == "");
  }
}

TEST_CASE("emulator: the default stream waits for blocking streams and they for it") {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    emulator::settings().seed = seed;
    const Streams streams(cudaStreamDefault);
    const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
    axpy(2, x.data(), y.data(), n, streams.first);
    axpy(1, y.data(), x.data(), n, nullptr);
    axpy(1, x.data(), y.data(), n, streams.second);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(y.values()[0] == 7);
    CHECK(emulator::report_text() == "");
  }
}

TEST_CASE("emulator: pinned memory is read when the copy runs, other memory at once") {
  const Watched watched;
  emulator::settings().seed = 1;
  const Streams streams(cudaStreamNonBlocking);
  const Buffer<int> device(2);
  int* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, sizeof(int)) == cudaSuccess);
  int plain = 1;
  *pinned = 1;
  cudaMemcpyAsync(device.data(), &plain, sizeof(int), cudaMemcpyHostToDevice, streams.first);
  cudaMemcpyAsync(device.data() + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, streams.first);
  plain = *pinned = 2;  // too early for the pinned one
  cudaStreamSynchronize(streams.first);
  CHECK(device.values() == std::vector<int>{1, 2});
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("emulator: asking for the end of a stream brings it nearer") {
  const Watched watched;
  const Streams streams(cudaStreamNonBlocking);
  const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
  axpy(2, x.data(), y.data(), n, streams.first);
  cudaEventRecord(streams.event, streams.first);
  int asked = 0;
  while (cudaEventQuery(streams.event) == cudaErrorNotReady) ++asked;
  while (cudaStreamQuery(streams.first) == cudaErrorNotReady) ++asked;
  CHECK(asked < 10);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, streams.event, streams.event) == cudaSuccess);
  CHECK(milliseconds == 0);
}

TEST_CASE("emulator: a captured graph runs at each launch, with the arguments it has then") {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    emulator::settings().seed = seed;
    const Streams streams(cudaStreamNonBlocking);
    const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 0));
    REQUIRE(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    axpy(2, x.data(), y.data(), n, streams.first);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(streams.first, &graph) == cudaSuccess);
    CHECK(y.values()[0] == 0);  // nothing has run
    cudaGraphNode_t first = nullptr;
    std::size_t count = 1;
    cudaGraphGetRootNodes(graph, &first, &count);
    REQUIRE(count == 1);
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess);
    cudaGraphLaunch(exec, streams.second);
    cudaGraphLaunch(exec, streams.second);
    float a = 5;
    const float* from = x.data();
    float* to = y.data();
    int size = n;
    void* arguments[] = {&a, &from, &to, &size};
    cudaKernelNodeParams parameters{};
    REQUIRE(cudaGraphKernelNodeGetParams(first, &parameters) == cudaSuccess);
    parameters.kernelParams = arguments;
    REQUIRE(cudaGraphExecKernelNodeSetParams(exec, first, &parameters) == cudaSuccess);
    cudaGraphLaunch(exec, streams.second);
    cudaGraphExecDestroy(exec);  // what was launched goes on
    cudaGraphDestroy(graph);
    cudaStreamSynchronize(streams.second);
    CHECK(y.values()[n - 1] == 2 + 2 + 5);
    CHECK(emulator::reports().empty());
  }
}

TEST_CASE("emulator: what no graph may contain spoils the capture and is reported") {
  const Watched watched;
  const Streams streams(cudaStreamNonBlocking);
  const auto spoils = [&](auto call) {
    emulator::clear_reports();
    REQUIRE(cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed) == cudaSuccess);
    call();
    static_cast<void>(cudaGetLastError());
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(streams.first, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);
    REQUIRE(!emulator::reports().empty());
    CHECK(emulator::reports()[0].kind == "capture");
  };
  spoils([&] { cudaStreamSynchronize(streams.first); });
  spoils([&] { cudaDeviceSynchronize(); });
  spoils([&] { cudaStreamQuery(streams.first); });
  spoils([&] { cudaEventRecord(streams.event, streams.first); });
  spoils([&] { cudaStreamWaitEvent(streams.first, streams.event); });
  spoils([&] { cudaStreamBeginCapture(streams.first, cudaStreamCaptureModeRelaxed); });
  emulator::clear_reports();
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(streams.first, &graph) == cudaErrorInvalidValue);  // none has begun
}

}  // namespace
}  // namespace quipu::testing
