#include "blas.h"

#include <array>

#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {
namespace {

struct Slot {
  std::mutex mutex;
  cublasHandle_t handle = nullptr;
};

Slot& slot_of(const Queue& queue) {
  using Handles = std::array<std::array<Slot, most_streams>, Device::max_index>;
  static auto* all = new Handles;  // left to the process: the driver may be gone before it
  return (*all)[static_cast<std::size_t>(queue.device)][static_cast<std::size_t>(queue.number)];
}

}  // namespace

void check_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const char* advice =
      status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED
          ? "cuBLAS found no memory on the device; make batches smaller, or call "
            "release_cached()"
          : "please report it with the shapes of the product";
  fail(call, " failed with ", cublasGetStatusName(status), ": ", advice);
}

Blas::Blas(const Queue& queue, const View& workspace) : lock_(slot_of(queue).mutex) {
  Slot& slot = slot_of(queue);
  if (!slot.handle) {
    cublasHandle_t handle = nullptr;
    check_blas(cublasCreate(&handle), "cublasCreate");
    // Unless told, it may round the parts of a long sum to the type of the result.
    constexpr auto math = static_cast<cublasMath_t>(
        CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    check_blas(cublasSetMathMode(handle, math), "cublasSetMathMode");
    slot.handle = handle;
  }
  handle_ = slot.handle;
  // Each time: the number may stand for an adopted stream for a while. It also forgets the
  // workspace.
  check_blas(cublasSetStream(handle_, queue.stream), "cublasSetStream");
  const bool given = workspace.defined && workspace.numel() > 0;
  if (!given) scratch_.emplace(queue);
  check_blas(
      cublasSetWorkspace(handle_, given ? workspace.data : scratch_->data(),
                         given ? static_cast<std::size_t>(workspace.numel()) : scratch_bytes),
      "cublasSetWorkspace");
}

}  // namespace quipu::detail::on_cuda
