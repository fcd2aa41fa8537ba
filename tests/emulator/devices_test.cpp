// Several emulated devices: memory, streams and events belong to one of them.
#include <thread>

#include "buffer.h"
#include "kernels.h"

namespace quipu::testing {
namespace {

constexpr int n = 256;

/// A device is the current one of this thread while this lives.
class Current {
 public:
  explicit Current(int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); }
  ~Current() { cudaSetDevice(0); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

TEST_CASE("emulator: each thread has a current device, and memory belongs to one") {
  const Watched watched;
  int count = 0, device = -1;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  REQUIRE(count == 2);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  const Current second(1);
  std::thread([&] { cudaGetDevice(&device); }).join();
  CHECK(device == 0);
  std::size_t before = 0, after = 0, total = 0;
  cudaMemGetInfo(&before, &total);
  const Buffer<float> x(std::vector<float>(n, 1));
  cudaMemGetInfo(&after, &total);
  CHECK(before - after == n * sizeof(float));
  cudaPointerAttributes attributes{};
  cudaPointerGetAttributes(&attributes, x.data());
  CHECK(attributes.device == 1);
}

TEST_CASE("emulator: a kernel that touches memory of another device is reported") {
  const Watched watched;
  const Buffer<float> x(std::vector<float>(n, 1));
  {
    const Current second(1);
    const Buffer<float> y(std::vector<float>(n, 1));
    axpy(2, x.data(), y.data(), n, nullptr);
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  }
  REQUIRE(emulator::reports().size() == 1);
  const emulator::Report report = emulator::reports()[0];
  CHECK(report.kind == "other device");
  CHECK(report.text.find("on device 0; the kernel runs on device 1") != std::string::npos);
}

TEST_CASE("emulator: launches and events need streams of their own device") {
  const Watched watched;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  {
    const Current second(1);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  cudaEventCreate(&event);
  const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
  axpy(2, x.data(), y.data(), n, stream);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  CHECK(emulator::reports().size() == 2);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(y.values()[0] == 1);
  cudaStreamDestroy(stream);
  cudaEventDestroy(event);
}

TEST_CASE("emulator: copies between devices are ordered by events, and a missing one is reported") {
  const Watched watched;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (const bool with_event : {true, false}) {
      CAPTURE(seed);
      CAPTURE(with_event);
      emulator::settings().seed = seed;
      emulator::clear_reports();
      cudaStream_t here = nullptr, there = nullptr;
      cudaEvent_t event = nullptr;
      cudaStreamCreateWithFlags(&here, cudaStreamNonBlocking);
      cudaEventCreate(&event);
      const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
      {
        const Current second(1);
        cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking);
        const Buffer<float> z(std::vector<float>(n, 0));
        cudaSetDevice(0);
        axpy(2, x.data(), y.data(), n, here);
        cudaEventRecord(event, here);
        cudaSetDevice(1);
        if (with_event) cudaStreamWaitEvent(there, event);
        CHECK(cudaMemcpyPeerAsync(z.data(), 1, y.data(), 0, n * sizeof(float), there) ==
              cudaSuccess);
        cudaStreamSynchronize(there);
        if (with_event) CHECK(z.values()[n - 1] == 3);
        CHECK(cudaMemcpyPeerAsync(z.data(), 0, y.data(), 1, 4, there) == cudaErrorInvalidValue);
        cudaGetLastError();
        cudaStreamSynchronize(here);
      }
      int unordered = 0;
      for (const auto& report : emulator::reports()) unordered += report.kind == "stream order";
      CHECK(unordered == (with_event ? 0 : 1));
      cudaStreamDestroy(here);
      cudaStreamDestroy(there);
      cudaEventDestroy(event);
    }
  }
}

TEST_CASE("emulator: waiting for a device leaves the others alone") {
  const Watched watched;
  emulator::settings().seed = 1;
  cudaStream_t here = nullptr;
  cudaStreamCreateWithFlags(&here, cudaStreamNonBlocking);
  const Buffer<float> x(std::vector<float>(n, 1)), y(std::vector<float>(n, 1));
  for (int i = 0; i < 5; ++i) axpy(2, x.data(), y.data(), n, here);  // asking runs one of them
  {
    const Current second(1);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
  }
  CHECK(cudaStreamQuery(here) == cudaErrorNotReady);
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(cudaStreamQuery(here) == cudaSuccess);
  cudaStreamDestroy(here);
}

}  // namespace
}  // namespace quipu::testing
