#pragma once
// Errors of the CUDA runtime and of cuBLAS as our own: they name the call and what to do.
#include <cuda_runtime_api.h>

#include <cstddef>

namespace quipu::detail::on_cuda {

/// What a user can do about it.
const char* advice_for(cudaError_t error);
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call);

/// Throws unless the call went well: `check_cuda(cudaStreamSynchronize(s),
/// "cudaStreamSynchronize")`.
inline void check_cuda(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw_cuda_error(error, call);
}
/// After a launch with `shared_bytes` of dynamic shared memory: throws if it could not be queued,
/// or if earlier work has failed by now.
void check_launch(const void* kernel, std::size_t shared_bytes);

}  // namespace quipu::detail::on_cuda
