#pragma once
// For kernels that read indices.
#include "launch.h"
#include "runtime/index_errors.h"

namespace quipu::on_cuda {

/// Whether an index lies in [0, size). If not, the note is left, and the caller touches nothing.
/// `position` is the row-major place of the index in its tensor.
__device__ __forceinline__ bool index_is_valid(IndexGuard guard, long long value, long long size,
                                               long long position) {
  if (value >= 0 && value < size) return true;
  if (atomicCAS(&guard.note->taken, 0u, 1u) == 0u) {
    guard.note->check = guard.check;
    guard.note->position = position;
    guard.note->value = value;
  }
  return false;
}

}  // namespace quipu::on_cuda
