#pragma once
// Stands in for the toolkit's header of this name: asynchronous copies to shared memory.
#include "cuda_runtime.h"

__forceinline__ void __pipeline_memcpy_async(void* shared, const void* global, std::size_t bytes,
                                             std::size_t zeros = 0) {
  quipu::emulator::copy_async(shared, global, bytes, zeros);
}
__forceinline__ void __pipeline_commit() {
  quipu::emulator::copy_commit();
}
__forceinline__ void __pipeline_wait_prior(std::size_t groups_left) {
  quipu::emulator::copy_wait(groups_left);
}
