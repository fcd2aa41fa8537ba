#include "quipu/core/devices.h"

#include <array>
#include <iostream>

#include "quipu/core/dispatch.h"
#include "quipu/core/error.h"

namespace quipu {
namespace {

DeviceFunctions& functions_of(DeviceKind kind) {
  static std::array<DeviceFunctions, 2> functions;
  return functions[static_cast<std::size_t>(kind)];
}

int count_cuda(std::string* why) {
  detail::ensure_kernels_registered();
  const DeviceFunctions& functions = functions_of(DeviceKind::cuda);
  if (functions.count) return functions.count(why);
  *why = "this build of quipu has no CUDA back end";
  return 0;
}

}  // namespace

void provide_devices(DeviceKind kind, DeviceFunctions functions) {
  functions_of(kind) = functions;
}

int device_count(DeviceKind kind) {
  std::string why;
  return kind == DeviceKind::cpu ? 1 : count_cuda(&why);
}

bool is_available(const Device& device) {
  return device.is_meta() || device.index() < device_count(device.kind());
}

bool is_emulated(const Device& device) {
  return is_available(device) && functions_of(device.kind()).emulated && !device.is_meta();
}

Device cuda_or_cpu() {
  std::string why;
  if (count_cuda(&why) > 0) return Device(DeviceKind::cuda);
  static const bool said = [&] {
    std::cerr << "quipu: no CUDA device (" << why << "); running on the CPU" << std::endl;
    return true;
  }();
  static_cast<void>(said);
  return cpu;
}

void synchronize(const Device& device) {
  if (!device.is_cuda()) return;
  check(is_available(device), "device ", device, " is not there");
  functions_of(device.kind()).synchronize(device.index());
}

}  // namespace quipu
