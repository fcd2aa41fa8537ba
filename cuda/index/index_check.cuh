#pragma once
// Checks of indices in kernels.
#include "quipu/cuda/launch.h"
#include "quipu/cuda/runtime/index_errors.h"

namespace quipu::detail::on_cuda {

/// Reports a bad value at a row-major position. Of all notes the one of the earliest check and
/// lowest position stays, so that the report does not depend on the order of threads.
__device__ __forceinline__ void leave_note(IndexGuard guard, long long value, long long position) {
  IndexNote* note = guard.note;
  const unsigned long long own = IndexNote::priority_of(guard.check, position);
  bool done = atomicMax(&note->priority, 0ull) >= own;
  while (!done) {
    if (atomicCAS(&note->busy, 0u, 1u) != 0u) continue;
    if (atomicMax(&note->priority, own) < own) {
      atomicExch(&note->value, static_cast<unsigned long long>(value));
    }
    __threadfence();
    atomicExch(&note->busy, 0u);
    done = true;
  }
}

/// Whether an index lies in [0, size). If not, it is reported, and the caller must not use it.
/// `position` is the row-major position of the index in its tensor.
__device__ __forceinline__ bool index_is_valid(IndexGuard guard, long long value, long long size,
                                               long long position) {
  if (value >= 0 && value < size) return true;
  leave_note(guard, value, position);
  return false;
}

}  // namespace quipu::detail::on_cuda
