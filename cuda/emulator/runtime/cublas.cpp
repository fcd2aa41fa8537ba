// cuBLAS products by Eigen: operands are converted to the compute type, multiplied, and rounded
// once.
#include <Eigen/Core>
#include <algorithm>
#include <cstring>

#include "../checks/report.h"
#include "../count.h"
#include "../emulator.h"
#include "../include/cublas_v2.h"
#include "../reduced.h"
#include "runtime.h"
#include "stream.h"

namespace quipu::emulator {

struct BlasHandle {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

namespace {

std::size_t bytes_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F: return 8;
    case CUDA_R_32F: return 4;
    default: return 2;
  }
}

bool is_reduced(cudaDataType type) {
  return bytes_of(type) == 2;
}

/// One operand: `rows` x `columns` as it lies in memory.
struct MatrixOperand {
  char* data;
  cudaDataType type;
  int rows, columns, ld;
  long long stride;

  std::size_t column_bytes() const { return static_cast<std::size_t>(rows) * bytes_of(type); }
  char* column(int batch, int j) const {
    const long long at = batch * stride + static_cast<long long>(j) * ld;
    return data + at * static_cast<long long>(bytes_of(type));
  }
};

struct Gemm {
  MatrixOperand a, b, c;
  bool transposed_a, transposed_b, in_double;
  int m, n, k, batch;
  double alpha, beta;
  void* workspace;
  std::size_t workspace_bytes;
};

double read_entry(const char* at, cudaDataType type) {
  float f = 0;
  double d = 0;
  std::uint16_t bits = 0;
  switch (type) {
    case CUDA_R_64F: std::memcpy(&d, at, 8); return d;
    case CUDA_R_32F: std::memcpy(&f, at, 4); return f;
    case CUDA_R_16F: std::memcpy(&bits, at, 2); return from_half_bits(bits);
    default: std::memcpy(&bits, at, 2); return from_bf16_bits(bits);
  }
}

template <class T>
void write_entry(char* at, cudaDataType type, T value) {
  const auto f = static_cast<float>(value);
  const auto d = static_cast<double>(value);
  const std::uint16_t bits = type == CUDA_R_16F ? to_half_bits(f) : to_bf16_bits(f);
  switch (type) {
    case CUDA_R_64F: std::memcpy(at, &d, 8); break;
    case CUDA_R_32F: std::memcpy(at, &f, 4); break;
    default: std::memcpy(at, &bits, 2); break;
  }
}

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

template <class T>
Matrix<T> read_matrix(const MatrixOperand& x, int batch) {
  Matrix<T> result(x.rows, x.columns);
  for (int j = 0; j < x.columns; ++j) {
    const char* from = x.column(batch, j);
    for (int i = 0; i < x.rows; ++i, from += bytes_of(x.type)) {
      result(i, j) = static_cast<T>(read_entry(from, x.type));
    }
  }
  return result;
}

template <class T>
void multiply(const Gemm& g, int batch) {
  const Matrix<T> a = read_matrix<T>(g.a, batch), b = read_matrix<T>(g.b, batch);
  Matrix<T> product(g.m, g.n);
  if (g.transposed_a && g.transposed_b) product.noalias() = a.transpose() * b.transpose();
  if (g.transposed_a && !g.transposed_b) product.noalias() = a.transpose() * b;
  if (!g.transposed_a && g.transposed_b) product.noalias() = a * b.transpose();
  if (!g.transposed_a && !g.transposed_b) product.noalias() = a * b;
  product *= static_cast<T>(g.alpha);
  if (g.beta != 0) product += static_cast<T>(g.beta) * read_matrix<T>(g.c, batch);
  for (int j = 0; j < g.n; ++j) {
    char* to = g.c.column(batch, j);
    for (int i = 0; i < g.m; ++i, to += bytes_of(g.c.type))
      write_entry(to, g.c.type, product(i, j));
  }
}

/// Looks at every column of an operand; false if one is out of bounds.
bool touch(const HostAccess& access, const MatrixOperand& x, int batch, HostUse use) {
  for (int z = 0; z < batch; ++z) {
    for (int j = 0; j < x.columns; ++j) {
      if (!access.touch(x.column(z, j), x.column_bytes(), use)) return false;
    }
    if (x.stride == 0) break;
  }
  return true;
}

void count(const Gemm& g) {
  if (!settings().count) return;
  const auto bytes = [&](const MatrixOperand& x) {
    const auto matrices = static_cast<std::uint64_t>(x.stride == 0 ? 1 : g.batch);
    return matrices * x.column_bytes() * static_cast<std::uint64_t>(x.columns);
  };
  LaunchRecord record;
  record.kernel = "cublas gemm";
  record.counters.launches = 1;
  record.counters.unique_read_bytes = bytes(g.a) + bytes(g.b) + (g.beta != 0 ? bytes(g.c) : 0);
  record.counters.unique_written_bytes = bytes(g.c);
  if (is_reduced(g.a.type)) {
    record.counters.mma_flops = 2 * static_cast<std::uint64_t>(g.m) *
                                static_cast<std::uint64_t>(g.n) * static_cast<std::uint64_t>(g.k) *
                                static_cast<std::uint64_t>(g.batch);
  }
  add_launch(std::move(record));
}

void run(const Gemm& g, const HostAccess& access) {
  if (!settings().run) return count(g);
  if (g.workspace != nullptr && !access.touch(g.workspace, g.workspace_bytes, HostUse::write))
    return;
  if (g.workspace != nullptr) access.wrote(g.workspace, g.workspace_bytes);
  if (!touch(access, g.a, g.batch, HostUse::read) || !touch(access, g.b, g.batch, HostUse::read))
    return;
  if (g.beta != 0 && !touch(access, g.c, g.batch, HostUse::read)) return;
  if (!touch(access, g.c, g.batch, HostUse::write)) return;
  for (int z = 0; z < g.batch; ++z) {
    if (g.in_double) {
      multiply<double>(g, z);
    } else {
      multiply<float>(g, z);
    }
    for (int j = 0; j < g.n; ++j) access.wrote(g.c.column(z, j), g.c.column_bytes());
  }
  count(g);
}

double scalar(const void* value, bool in_double) {
  return in_double ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

/// Which combinations cuBLAS has: f64 all through, or f32 computation on one operand type with a
/// result of that type or f32.
bool supported(cudaDataType a, cudaDataType b, cudaDataType c, bool in_double) {
  if (a != b) return false;
  if (in_double) return a == CUDA_R_64F && c == CUDA_R_64F;
  return a != CUDA_R_64F && (c == a || c == CUDA_R_32F);
}

}  // namespace
}  // namespace quipu::emulator

using namespace quipu::emulator;

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new BlasHandle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  *handle = {stream, nullptr, 0};  // the workspace goes back to the default, as in the library
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t mode) {
  return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) {
  return cublasGetStatusName(status);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType type_a,
                                          int ld_a, long long stride_a, const void* b,
                                          cudaDataType type_b, int ld_b, long long stride_b,
                                          const void* beta, void* c, cudaDataType type_c, int ld_c,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool across_a = op_a != CUBLAS_OP_N, across_b = op_b != CUBLAS_OP_N;
  const bool in_double = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
  const int rows_a = across_a ? k : m, rows_b = across_b ? n : k;
  if (m < 0 || n < 0 || k < 0 || batch < 0 || ld_a < std::max(1, rows_a) ||
      ld_b < std::max(1, rows_b) || ld_c < std::max(1, m)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!supported(type_a, type_b, type_c, in_double)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (m == 0 || n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  Gemm g;
  g.a = {const_cast<char*>(static_cast<const char*>(a)),
         type_a,
         rows_a,
         across_a ? m : k,
         ld_a,
         stride_a};
  g.b = {const_cast<char*>(static_cast<const char*>(b)),
         type_b,
         rows_b,
         across_b ? k : n,
         ld_b,
         stride_b};
  g.c = {static_cast<char*>(c), type_c, m, n, ld_c, stride_c};
  g.transposed_a = across_a;
  g.transposed_b = across_b;
  g.in_double = in_double;
  g.m = m, g.n = n, g.k = k, g.batch = batch;
  g.alpha = scalar(alpha, in_double);
  g.beta = scalar(beta, in_double);
  g.workspace = handle->workspace;
  g.workspace_bytes = handle->workspace_bytes;
  submit(handle->stream, [g](std::uint64_t start, std::uint64_t oldest) {
    run(g, HostAccess{"cublasGemm", start, oldest});
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType type_a, int ld_a, const void* b, cudaDataType type_b,
                            int ld_b, const void* beta, void* c, cudaDataType type_c, int ld_c,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, ld_a, 0, b,
                                    type_b, ld_b, 0, beta, c, type_c, ld_c, 0, 1, compute,
                                    algorithm);
}
