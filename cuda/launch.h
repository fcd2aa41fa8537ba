#pragma once
// The one header that a kernel file includes: CUDA under nvcc, the emulator under any other
// compiler (cuda/emulator/README.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

namespace quipu {

/// Queues kernel(arguments...) on the stream; `shared_bytes` is what dynamic_shared() gives. Errors
/// are asked for with cudaGetLastError().
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
#ifdef __CUDACC__
  constexpr std::size_t without_asking = 48 * 1024;
  if (shared_bytes > without_asking) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));
  }
  kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
#else
  emulator::enqueue(std::make_shared<emulator::CallOf<Parameters...>>(kernel, arguments...), grid,
                    block, shared_bytes, stream);
#endif
}

/// The block's dynamic shared memory, aligned to 128 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef __CUDACC__
  extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
#else
  return static_cast<T*>(emulator::dynamic_shared());
#endif
}

}  // namespace quipu
