#pragma once
// Which devices this machine has, and waiting for them.
#include "quipu/core/device.h"

namespace quipu {

/// How many devices of a kind this machine has; 0 for cuda in a build without CUDA, or without a
/// driver. Starts nothing.
int device_count(DeviceKind kind);
/// True for cpu, meta, and the CUDA devices of this machine.
bool is_available(const Device& device);
/// True for CUDA in a build with -DQUIPU_CUDA=EMULATE: every access is checked, and takes its time.
bool is_emulated(const Device& device);
/// The first CUDA device; where there is none, the CPU, which one line on stderr says once.
Device cuda_or_cpu();
/// Waits until everything that this thread gave a device is done. Errors that could not be known
/// earlier, such as an index out of range, are thrown here.
void synchronize(const Device& device);

}  // namespace quipu
