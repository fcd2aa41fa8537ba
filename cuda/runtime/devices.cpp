#include "devices.h"

#include <vector>

#include "error.h"
#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {
namespace {

/// Kernels need cp.async and tensor cores that multiply bf16 (ptx.h).
constexpr int least_capability = 80;

struct Devices {
  std::vector<int> usable;  // CUDA's numbers
  std::string refused;      // why others are not among them
};

int capability_of(int device) {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

std::string text_of(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

Devices find_devices() {
  Devices found;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    found.refused = error == cudaSuccess ? "no GPU can be seen" : cudaGetErrorString(error);
    return found;
  }
  for (int device = 0; device < count; ++device) {
    const int capability = capability_of(device);
    if (capability >= least_capability) {
      found.usable.push_back(device);
      continue;
    }
    cudaDeviceProp card{};
    check_cuda(cudaGetDeviceProperties(&card, device), "cudaGetDeviceProperties");
    found.refused += (found.refused.empty() ? "" : ", ") + std::string(card.name) +
                     " has compute capability " + text_of(capability) + ", but " +
                     text_of(least_capability) + " or later is needed";
  }
  return found;
}

const Devices& devices() {
  static const Devices& found = *new Devices(find_devices());
  return found;
}

}  // namespace

int number_of(int index) {
  return devices().usable.at(static_cast<std::size_t>(index));
}

int device_count(std::string* why) {
  if (why) *why = devices().refused;
  return static_cast<int>(devices().usable.size());
}

void check_device(int index) {
  std::string why;
  const int count = device_count(&why);
  check(count > 0, "device cuda:", index, " is not there: ", why, "; use device cpu");
  check(index < count, "device cuda:", index, " is not there: this machine has ", count,
        count == 1 ? " CUDA device" : " CUDA devices", why.empty() ? "" : " to use: ", why);
}

void use_device(int index) {
  // A thread begins on device 0, but nothing has told the driver that it will be used. Later it is
  // asked each time: the program and other libraries change the current device, too.
  static thread_local bool begun = false;
  int current = -1;
  if (begun) check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == number_of(index)) return;
  check_cuda(cudaSetDevice(number_of(index)), "cudaSetDevice");
  begun = true;
}

std::size_t shared_bytes_of_block(int index) {
  int bytes = 0;
  check_cuda(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number_of(index)),
      "cudaDeviceGetAttribute");
  return static_cast<std::size_t>(bytes);
}

}  // namespace quipu::detail::on_cuda
