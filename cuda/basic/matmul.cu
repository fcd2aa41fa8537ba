// Matrix products by cuBLAS. Its matrices are column-major, ours row-major, so it computes o^T =
// b^T a^T and nothing is copied. One call multiplies a whole batch along one dimension; further
// batch dimensions, and products that are summed, are further calls in a fixed order. Sums are f32
// (f64 for f64), rounded once at the end, and without TF32 unless allow_tf32() was called. Bound by
// the arithmetic of the device, small ones by the launch.
#include <limits>
#include <utility>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/error.h"
#include "quipu/cuda/runtime/blas.h"
#include "quipu/cuda/tile/geometry.h"
#include "quipu/ops/matmul/kernels.h"
#include "quipu/ops/matmul/matmul.h"

namespace quipu::detail {
namespace on_cuda {
namespace {

View transposed(View v) {
  std::swap(v.shape[v.dim() - 1], v.shape[v.dim() - 2]);
  std::swap(v.strides[v.dim() - 1], v.strides[v.dim() - 2]);
  return v;
}

bool has_dense_rows(const View& v) {
  const int rows = v.dim() - 2, columns = v.dim() - 1;
  return (v.stride(columns) == 1 || v.size(columns) <= 1) &&
         (v.stride(rows) >= std::max<std::int64_t>(v.size(columns), 1) || v.size(rows) <= 1);
}

cudaDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return CUDA_R_64F;
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    default: return CUDA_R_16F;
  }
}

/// A number of rows, columns or elements between rows, as cuBLAS wants it.
int as_int(std::int64_t n) {
  check(n <= std::numeric_limits<int>::max(), "a matrix with ", n,
        " rows, columns or elements in a row is beyond what cuBLAS can multiply (2^31 - 1)");
  return static_cast<int>(n);
}

/// One operand as cuBLAS sees it: the transpose of ours.
struct Side {
  explicit Side(const View& v)
      : view(v), rows_are_dense(has_dense_rows(v)), type(type_of(v.dtype)) {
    const View lying = rows_are_dense ? v : transposed(v);
    const std::int64_t row = lying.size(lying.dim() - 1);
    const bool one_row = lying.size(lying.dim() - 2) <= 1;
    const std::int64_t apart = one_row ? row : lying.stride(lying.dim() - 2);
    ld = as_int(std::max<std::int64_t>(apart, 1));
  }
  cublasOperation_t op() const { return rows_are_dense ? CUBLAS_OP_N : CUBLAS_OP_T; }

  View view;
  bool rows_are_dense;
  cudaDataType type;
  int ld;
};

/// Batch dimensions: those that o has are products apart, the others are summed.
struct Batches {
  Batches(const View& a, const View& b, const View& o) {
    const auto stride = [](const View& v, int d) { return v.size(d) == 1 ? 0 : v.stride(d); };
    for (int d = 0; d + 2 < o.dim(); ++d) {
      const std::int64_t size = a.size(d) == 1 ? b.size(d) : a.size(d);
      Layout<3>& batch = o.size(d) == size ? apart : summed;
      batch.shape.push_back(size);
      batch.strides[0].push_back(stride(o, d));
      batch.strides[1].push_back(stride(a, d));
      batch.strides[2].push_back(stride(b, d));
    }
    products = numel(summed.shape);
  }
  Layout<3> apart, summed;
  std::int64_t products;  // that are summed
};

/// Calls f(offsets) for every position of a layout.
template <class F>
void for_each_position(const Layout<3>& layout, F f) {
  for (std::int64_t i = 0; i < numel(layout.shape); ++i) {
    std::array<std::int64_t, 3> at{};
    std::int64_t left = i;
    for (int d = layout.shape.size() - 1; d >= 0; --d) {
      const std::int64_t index = left % layout.shape[d];
      left /= layout.shape[d];
      for (std::size_t v = 0; v < 3; ++v) at[v] += index * layout.strides[v][d];
    }
    f(at);
  }
}

cublasComputeType_t compute_type_for(DType dtype) {
  if (dtype == DType::f64) return CUBLAS_COMPUTE_64F;
  return dtype == DType::f32 && tf32_allowed() ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// Products of one call: they lie along a dimension of the grid that has no more blocks.
constexpr std::int64_t largest_batch = 65535;

/// o[...] (=|+=) a[...] b[...] for a batch along one dimension.
void multiply(cublasHandle_t handle, const Side& a, const Side& b, const Side& o, bool add,
              const std::array<std::int64_t, 3>& at, std::int64_t batch,
              const std::array<std::int64_t, 3>& stride) {
  const bool wide = o.view.dtype == DType::f64;
  const double one = 1, old = add ? 1 : 0;
  const float one_f32 = 1, old_f32 = add ? 1 : 0;
  const void* alpha = wide ? static_cast<const void*>(&one) : &one_f32;
  const void* beta = wide ? static_cast<const void*>(&old) : &old_f32;
  const int last = o.view.dim() - 1;
  check_blas(
      cublasGemmStridedBatchedEx(
          handle, b.op(), a.op(), as_int(o.view.size(last)), as_int(o.view.size(last - 1)),
          as_int(a.view.size(last)), alpha, address(b.view, at[2]), b.type, b.ld, stride[2],
          address(a.view, at[1]), a.type, a.ld, stride[1], beta, address(o.view, at[0]), o.type,
          o.ld, stride[0], as_int(batch), compute_type_for(a.view.dtype), CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx");
}

void matmul(View a, View b, Target o, View workspace) {
  if (o.view.numel() == 0) return;
  if (!has_dense_rows(o.view)) {
    std::swap(a, b);
    a = transposed(a);
    b = transposed(b);
    o.view = transposed(o.view);
  }
  const Batches batches(a, b, o.view);
  if (batches.products == 0 || a.size(a.dim() - 1) == 0) {
    if (!o.add) fill_kernel(o.view, 0);
    return;
  }
  const Queue queue(o.view);
  const Blas blas(queue, workspace);
  const Side left(a), right(b), out(o.view);
  Layout<3> loops = batches.apart.merged();
  const int last = loops.shape.size() - 1;
  const std::int64_t batch = loops.shape[last];
  const std::array<std::int64_t, 3> stride{loops.strides[0][last], loops.strides[1][last],
                                           loops.strides[2][last]};
  loops.shape[last] = 1;
  for_each_position(loops, [&](const std::array<std::int64_t, 3>& start) {
    bool add = o.add;
    for_each_position(batches.summed, [&](std::array<std::int64_t, 3> at) {
      for (std::size_t v = 0; v < 3; ++v) at[v] += start[v];
      for (std::int64_t done = 0; done < batch; done += largest_batch) {
        multiply(blas, left, right, out, add, at, std::min(batch - done, largest_batch), stride);
        for (std::size_t v = 0; v < 3; ++v) at[v] += largest_batch * stride[v];
      }
      add = true;
    });
  });
}

}  // namespace
}  // namespace on_cuda

void register_cuda_matmul() {
  matmul_kernel.provide(Variant::cuda, on_cuda::matmul);
}

}  // namespace quipu::detail
