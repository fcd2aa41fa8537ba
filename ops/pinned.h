#pragma once
// Host memory that a CUDA device reads by itself, so that copies to it run beside the host's work.
// A Loader whose batches go to a CUDA device does all of this on its own.
#include "quipu/core/tensor.h"

namespace quipu {

/// A copy of a tensor of the CPU in pinned (page-locked) memory, which counts as the CPU's memory;
/// x itself if it is pinned already, and where there is no CUDA device
/// or nothing is cached (QUIPU_NO_CACHE=1). The system can neither swap
/// nor move such memory, so take what is copied often, not everything.
Tensor pin_memory(const Tensor& x);
/// Whether x lies in such memory.
bool is_pinned(const Tensor& x);

/// x.to(device), but for a dense pinned tensor that goes to a CUDA device the host does not wait:
/// the values are read later, in the order of the device's work, and must not be changed before
/// synchronize(device) or anything else that waits for the result. x may be let go at once.
Tensor to_async(const Tensor& x, Device device);

}  // namespace quipu
