#pragma once
// What the stand-ins for libraries (the runtime API, cuBLAS) share.
#include <cstddef>
#include <cstdint>
#include <string>

#include "../include/cuda_runtime_api.h"

namespace quipu::emulator {

/// What cudaGetLastError gives next.
void set_error(cudaError_t error);
/// A kernel was given up.
void set_fault();
/// What all calls return because of an earlier kernel (Settings::sticky), or cudaSuccess.
cudaError_t device_fault();

enum class HostUse : std::uint8_t {
  copy,   // values may be anything
  read,   // values matter: they must have been written
  write,  // is about to
};

/// A copy, a fill or a library call that runs now, at its epoch.
struct HostAccess {
  const char* call;
  std::uint64_t start, oldest_unordered;

  /// Checks and remembers a use of device memory; false if it is out of bounds.
  bool touch(const void* address, std::size_t bytes, HostUse use) const;
  /// What was written.
  void wrote(void* address, std::size_t bytes) const;
  void copied(void* to, const void* from, std::size_t bytes) const;
};

}  // namespace quipu::emulator
