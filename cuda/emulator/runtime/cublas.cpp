// cuBLAS products by Eigen: operands are converted to the compute type, multiplied, and rounded
// once. What the library may do unless it is told otherwise is done here always: parts of a sum are
// rounded to the type of the result, so that a forgotten math mode shows.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
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
  int math = CUBLAS_DEFAULT_MATH;
};

namespace {

/// A workspace that is smaller makes some routines of the library fail.
constexpr std::size_t smallest_workspace = 16 << 10;
/// Products of a batch become blocks along a dimension of the grid that has no more.
constexpr int largest_batch = 65535;

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
  bool transposed_a, transposed_b, in_double, in_tf32, parts_are_rounded;
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

/// Rounded to the 10 bits behind the point that TF32 has, ties to even.
template <class T>
T as_tf32(T value) {
  const auto f = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &f, 4);
  constexpr std::uint32_t dropped = 13;
  if (std::isfinite(f)) bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1u);
  bits &= ~((1u << dropped) - 1);
  float rounded = 0;
  std::memcpy(&rounded, &bits, 4);
  return std::isfinite(f) ? static_cast<T>(rounded) : value;
}

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

/// op(x), as its product takes it.
template <class T>
Matrix<T> operand(const Gemm& g, const MatrixOperand& x, bool transposed, int batch) {
  Matrix<T> values = read_matrix<T>(x, batch);
  if (g.in_tf32) values = values.unaryExpr([](T value) { return as_tf32(value); }).eval();
  return transposed ? Matrix<T>(values.transpose()) : values;
}

/// A value as the type of the result holds it.
template <class T>
T rounded_to(cudaDataType type, T value) {
  char bytes[8];
  write_entry(bytes, type, value);
  return static_cast<T>(read_entry(bytes, type));
}

template <class T>
void multiply(const Gemm& g, int batch) {
  const Matrix<T> a = operand<T>(g, g.a, g.transposed_a, batch);
  const Matrix<T> b = operand<T>(g, g.b, g.transposed_b, batch);
  Matrix<T> product = Matrix<T>::Zero(g.m, g.n);
  if (g.parts_are_rounded) {
    const int half = g.k / 2;
    const auto round = [&](T value) { return rounded_to(g.c.type, value); };
    product = (a.leftCols(half) * b.topRows(half)).eval().unaryExpr(round);
    product += (a.rightCols(g.k - half) * b.bottomRows(g.k - half)).eval().unaryExpr(round);
  } else {
    product.noalias() = a * b;
  }
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
  *handle = {stream, nullptr, 0, handle->math};  // the workspace goes back to the default
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

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t mode) {
  return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
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
  if (batch > largest_batch) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (handle->workspace != nullptr && handle->workspace_bytes < smallest_workspace) {
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
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
  g.in_tf32 =
      type_a == CUDA_R_32F &&
      (compute == CUBLAS_COMPUTE_32F_FAST_TF32 ||
       (compute == CUBLAS_COMPUTE_32F && (handle->math & 15) == CUBLAS_TF32_TENSOR_OP_MATH));
  g.parts_are_rounded = is_reduced(type_c) && compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
                        (handle->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) == 0;
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
