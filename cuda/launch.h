#pragma once
// The one header that a kernel file includes: CUDA under nvcc, the emulator under any other
// compiler (cuda/emulator/README.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>
#include <type_traits>

namespace quipu {
namespace detail {

/// Lets a kernel have so much dynamic shared memory on this thread's device. What it may have is
/// only raised: another thread may be about to launch it with more.
inline cudaError_t allow_shared(const void* kernel, std::size_t bytes) {
  static std::mutex lock;
  const std::lock_guard guard(lock);
  cudaFuncAttributes now{};
  const cudaError_t error = cudaFuncGetAttributes(&now, kernel);
  if (error != cudaSuccess || bytes <= static_cast<std::size_t>(now.maxDynamicSharedSizeBytes)) {
    return error;
  }
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

}  // namespace detail

/// Queues kernel(arguments...) on the stream; `shared_bytes` is what dynamic_shared() gives. Errors
/// are asked for with cudaGetLastError(): cudaErrorInvalidValue if the device has less shared
/// memory for a block than the kernel's static arrays and `shared_bytes` together.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            cudaStream_t stream, std::type_identity_t<Parameters>... arguments) {
  // Up to 48 KiB are there without asking, static arrays included, for which this leaves 32.
  constexpr std::size_t without_asking = 16 * 1024;
  if (shared_bytes > without_asking &&
      detail::allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes) != cudaSuccess) {
    return;
  }
#ifdef __CUDACC__
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
