// Products of the cuBLAS stand-in, and what it reports.
#include <cublas_v2.h>

#include <cmath>

#include "buffer.h"

namespace quipu::testing {
namespace {

constexpr int m = 5, n = 7, k = 11, batch = 3;

/// Row-major op(a) (m x k) and op(b) (k x n) of one batch entry give c (m x n).
template <class T, class C, class Scalar>
void check_products(cudaDataType type, cudaDataType type_c, cublasComputeType_t compute,
                    double tolerance) {
  const Watched watched;
  const auto fa = random_floats(batch * m * k, 1), fb = random_floats(batch * k * n, 2),
             fc = random_floats(batch * m * n, 3);
  const std::vector<T> a(fa.begin(), fa.end()), b(fb.begin(), fb.end());
  const std::vector<C> c(fc.begin(), fc.end());
  const Buffer<T> da(a), db(b);
  cublasHandle_t handle = nullptr;
  REQUIRE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
  cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
  const Scalar alpha = 0.5, beta = 2;
  const auto value = [](auto x) { return double(static_cast<Scalar>(x)); };
  for (const bool across_a : {false, true}) {
    for (const bool across_b : {false, true}) {
      CAPTURE(across_a);
      CAPTURE(across_b);
      const Buffer<C> dc(c);
      const auto op = [](bool across) { return across ? CUBLAS_OP_T : CUBLAS_OP_N; };
      CHECK(cublasGemmStridedBatchedEx(
                handle, op(across_a), op(across_b), m, n, k, &alpha, da.data(), type,
                across_a ? k : m, m * k, db.data(), type, across_b ? n : k, k * n, &beta, dc.data(),
                type_c, m, m * n, batch, compute, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
      const auto got = dc.values();
      for (int z = 0; z < batch; ++z) {
        for (int i = 0; i < m; ++i) {
          for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int p = 0; p < k; ++p) {
              const int at_a = z * m * k + (across_a ? i * k + p : p * m + i);
              const int at_b = z * k * n + (across_b ? p * n + j : j * k + p);
              sum += value(a[std::size_t(at_a)]) * value(b[std::size_t(at_b)]);
            }
            const int place = z * m * n + j * m + i;
            const auto at_c = std::size_t(place);
            const double wanted = 0.5 * sum + 2 * value(c[at_c]);
            CHECK(std::fabs(value(got[at_c]) - wanted) <= tolerance * (1 + std::fabs(wanted)));
          }
        }
      }
    }
  }
  CHECK(emulator::report_text() == "");
  cublasDestroy(handle);
}

TEST_CASE("emulator: products of every type, plain and transposed, in batches") {
  check_products<float, float, float>(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 1e-6);
  check_products<double, double, double>(CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, 1e-14);
  check_products<__nv_bfloat16, __nv_bfloat16, float>(CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F,
                                                      4e-3);
  check_products<__nv_bfloat16, float, float>(CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, 1e-6);
  check_products<__half, __half, float>(CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, 5e-4);
}

/// c = a b of n x n floats on a stream.
void square(cublasHandle_t handle, int size, const float* a, const float* b, float* c) {
  const float one = 1, zero = 0;
  cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, &one, a, CUDA_R_32F, size, b,
               CUDA_R_32F, size, &zero, c, CUDA_R_32F, size, CUBLAS_COMPUTE_32F,
               CUBLAS_GEMM_DEFAULT);
}

TEST_CASE("emulator: products are checked and counted like kernels") {
  const Watched watched;
  constexpr int size = 16;
  const Buffer<float> a(std::vector<float>(size * size)), c(size * size), short_c(100),
      never_written(size * size);
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  const auto kind_of_first = [] {
    const auto all = emulator::reports();
    return all.empty() ? std::string("none") : all[0].kind;
  };
  emulator::clear_counters();
  square(handle, size, a.data(), a.data(), c.data());
  CHECK(kind_of_first() == "none");
  CHECK(emulator::counters().unique_read_bytes == 2 * size * size * 4);
  CHECK(emulator::counters().unique_written_bytes == size * size * 4);

  square(handle, size, a.data(), a.data(), short_c.data());
  CHECK(kind_of_first() == "out of bounds");
  emulator::clear_reports();
  square(handle, size, a.data(), never_written.data(), c.data());
  CHECK(kind_of_first() == "uninitialised read");
  CHECK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, nullptr, a.data(), CUDA_R_32F, 3,
                     a.data(), CUDA_R_32F, 4, nullptr, c.data(), CUDA_R_32F, 4, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_INVALID_VALUE);
  cublasDestroy(handle);
}

TEST_CASE("emulator: two streams that share a workspace are reported") {
  const Watched watched;
  constexpr int size = 16;
  for (const bool shared : {false, true}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      emulator::settings().seed = seed;
      emulator::clear_reports();
      const Buffer<float> a(std::vector<float>(size * size)), c(size * size), d(size * size);
      const Buffer<char> first(16384), second(16384);
      cudaStream_t streams[2];
      cublasHandle_t handles[2];
      for (int i = 0; i < 2; ++i) {
        cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
        cublasCreate(&handles[i]);
        cublasSetStream(handles[i], streams[i]);
        cublasSetWorkspace(handles[i], i == 0 || shared ? first.data() : second.data(), 16384);
        square(handles[i], size, a.data(), a.data(), i == 0 ? c.data() : d.data());
      }
      const auto all = emulator::reports();
      CHECK(all.size() == (shared ? 1 : 0));
      for (int i = 0; i < 2; ++i) {
        cublasDestroy(handles[i]);
        cudaStreamDestroy(streams[i]);
      }
    }
  }
}

TEST_CASE("emulator: cuBLAS refuses what the library refuses") {
  const Watched watched;
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  const Buffer<float> a(std::vector<float>(65536)), c(65536);
  const Buffer<char> workspace(16 << 10);
  const auto status = [&](int count, std::size_t bytes) {
    const float one = 1, zero = 0;
    cublasSetWorkspace(handle, workspace.data(), bytes);
    return cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.data(),
                                      CUDA_R_32F, 1, 1, a.data(), CUDA_R_32F, 1, 1, &zero, c.data(),
                                      CUDA_R_32F, 1, 1, count, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
  };
  CHECK(status(65535, 16 << 10) == CUBLAS_STATUS_SUCCESS);
  CHECK(status(65536, 16 << 10) == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(status(1, (16 << 10) - 1) == CUBLAS_STATUS_ALLOC_FAILED);
  CHECK(emulator::report_text() == "");
  cublasDestroy(handle);
}

TEST_CASE("emulator: the math mode decides how products are rounded") {
  const Watched watched;
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  const std::vector<__nv_bfloat16> row{256.f, 1.f, 1.f, 0.f}, ones(4, __nv_bfloat16(1.f));
  const Buffer<__nv_bfloat16> a(row), b(ones), c(1);
  const auto sum = [&](int mode) {
    const float one = 1, zero = 0;
    cublasSetMathMode(handle, static_cast<cublasMath_t>(mode));
    cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 4, &one, a.data(), CUDA_R_16BF, 1,
                 b.data(), CUDA_R_16BF, 4, &zero, c.data(), CUDA_R_16BF, 1, CUBLAS_COMPUTE_32F,
                 CUBLAS_GEMM_DEFAULT);
    return static_cast<float>(c.values()[0]);
  };
  CHECK(sum(CUBLAS_DEFAULT_MATH) == 256);
  CHECK(sum(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) == 258);
  const float fine = 1 + 3.f / 2048;
  const Buffer<float> x(std::vector<float>{fine}), y(std::vector<float>{1.f}), z(1);
  const auto product = [&](cublasMath_t mode) {
    cublasSetMathMode(handle, mode);
    square(handle, 1, x.data(), y.data(), z.data());
    return z.values()[0];
  };
  CHECK(product(CUBLAS_DEFAULT_MATH) == fine);
  CHECK(product(CUBLAS_TF32_TENSOR_OP_MATH) == 1 + 2.f / 1024);
  cublasDestroy(handle);
}

}  // namespace
}  // namespace quipu::testing
