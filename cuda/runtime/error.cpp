#include "error.h"

#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {

const char* advice_for(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "the device has no memory left; make batches smaller, or call release_cached()";
    case cudaErrorInsufficientDriver:
      return "the driver is missing or older than this build's CUDA; update it, or use device cpu";
    case cudaErrorNoDevice:
      return "no GPU can be seen; look at CUDA_VISIBLE_DEVICES, or use device cpu";
    case cudaErrorInvalidDevice: return "there is no device of that number";
    case cudaErrorInvalidConfiguration: return "this is a bug in quipu: please report it";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "an earlier kernel went wrong and this process cannot use the device any more; a "
             "build "
             "with -DQUIPU_CUDA=EMULATE, or compute-sanitizer, names the line";
    default: return "earlier work on the device may be the cause";
  }
}

void throw_cuda_error(cudaError_t error, const char* call) {
  static_cast<void>(cudaGetLastError());  // the next call starts without it, where it can
  fail(call, " failed with ", cudaGetErrorName(error), " (", cudaGetErrorString(error),
       "): ", advice_for(error));
}

void check_launch(const void* kernel, std::size_t shared_bytes) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  int device = 0;
  cudaFuncAttributes attributes{};
  cudaDeviceProp card{};
  if (error == cudaErrorInvalidValue && cudaGetDevice(&device) == cudaSuccess &&
      cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
      cudaGetDeviceProperties(&card, device) == cudaSuccess) {
    const std::size_t wanted = shared_bytes + attributes.sharedSizeBytes;
    check(wanted <= card.sharedMemPerBlockOptin, "a block wants ", wanted,
          " bytes of shared memory, but ", card.name, " has ", card.sharedMemPerBlockOptin,
          " for a block: use device cpu or another card, and please report it");
  }
  throw_cuda_error(error, "a kernel launch");
}

}  // namespace quipu::detail::on_cuda
