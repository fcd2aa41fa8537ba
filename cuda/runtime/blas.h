#pragma once
// cuBLAS, one handle for each stream. It gets its workspace from the caller, so that the ledger
// sees it; where none is given, the stream's scratch memory.
#include <cublas_v2.h>

#include <mutex>
#include <optional>

#include "quipu/core/dispatch/view.h"
#include "streams.h"

namespace quipu::detail::on_cuda {

/// Throws unless the call went well.
void check_blas(cublasStatus_t status, const char* call);

/// The handle of a queue while this lives; others wait for it.
class Blas {
 public:
  Blas(const Queue& queue, const View& workspace);
  operator cublasHandle_t() const { return handle_; }

 private:
  std::unique_lock<std::mutex> lock_;
  std::optional<Scratch> scratch_;
  cublasHandle_t handle_;
};

}  // namespace quipu::detail::on_cuda
