#include "quipu/core/dispatch/dispatch.h"

#include <mutex>

#include "quipu/core/devices.h"
#include "quipu/core/dispatch/cpu_levels.h"

namespace quipu::detail {

void ensure_kernels_registered() {
  static const bool done = [] {
    const CpuLevel& level = chosen_cpu_level();  // throws before anything is there
    register_kernels();
    level.provide_kernels();
    return true;
  }();
  static_cast<void>(done);
}

namespace {

std::vector<const AnyKernel*>& known_kernels() {
  static auto* kernels = new std::vector<const AnyKernel*>;
  return *kernels;
}

}  // namespace

void AnyKernel::note_provided(Variant variant) {
  if (provided_ == 0) known_kernels().push_back(this);
  provided_ |= 1u << static_cast<unsigned>(variant);
}

const std::vector<const AnyKernel*>& all_kernels() {
  ensure_kernels_registered();
  return known_kernels();
}

void throw_no_kernel(const char* kernel, DeviceKind kind) {
  if (kind == DeviceKind::cuda && device_count(kind) > 0) {
    fail("there is no CUDA kernel '", kernel, "' in this build of quipu; use device cpu for it");
  }
  if (kind == DeviceKind::cuda) {
    fail("this build of quipu has no CUDA back end (kernel '", kernel,
         "' is not there); configure with -DQUIPU_CUDA=ON, or use device cpu");
  }
  throw_internal(concat("no kernel '", kernel, "' for ", name_of(kind)));
}

}  // namespace quipu::detail
