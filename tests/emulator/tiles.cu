// Products of tiles through shared memory, with and without asynchronous copies.
//
// sass multiply_tiles_kernel<.*0>: need LDS.128 STG.E.128 BAR.SYNC; forbid STL LDL LD.E ST.E;
// registers 64; shared 16384
//
// sass multiply_tiles_kernel<.*3>: local 8
//
// sass multiply_stages_kernel<.*0>: need LDS.128 STG.E.128 LDGSTS.E.BYPASS.128; forbid STL LDL;
// registers 80
#include "kernels.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {
namespace {

constexpr int rows = 32, width = 64, threads = 256;

/// Each thread owns 4 x 4 entries of the result.
struct Corner {
  int x, y;
};

__device__ Corner corner() {
  const int t = static_cast<int>(threadIdx.x);
  return {t % 16, t / 16};
}

__device__ __forceinline__ void add_rows(float (&sum)[4][4], const float* ks, const float* vs) {
  const auto [x, y] = corner();
  for (int r = 0; r < rows; ++r) {
    const float4 a = reinterpret_cast<const float4*>(ks)[r * 16 + y];
    const float4 b = reinterpret_cast<const float4*>(vs)[r * 16 + x];
    const float left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[i][j] += left[i] * right[j];
    }
  }
}

__device__ __forceinline__ void store(float* out, const float (&sum)[4][4]) {
  const auto [x, y] = corner();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reinterpret_cast<float4*>(out)[(y * 4 + i) * 16 + x] =
        make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
  }
}

template <Tiles variant>
__global__ void __launch_bounds__(threads)
    multiply_tiles_kernel(const float* __restrict__ k, const float* __restrict__ v,
                          float* __restrict__ out, int n) {
  __shared__ __align__(16) float ks[rows * width];
  __shared__ __align__(16) float vs[rows * width];
  const int t = static_cast<int>(threadIdx.x);
  k += size_t{blockIdx.x} * n * width;
  v += size_t{blockIdx.x} * n * width;
  float sum[4][4] = {};
  for (int base = 0; base < n; base += rows) {
    for (int i = t; i < rows * 16; i += threads) {
      const int r = i / 16;
      const bool inside = variant == Tiles::no_bound_check || base + r < n;
      const size_t from = size_t(base) * 16 + i;
      const float4 zero = make_float4(0, 0, 0, 0);
      reinterpret_cast<float4*>(ks)[i] = inside ? reinterpret_cast<const float4*>(k)[from] : zero;
      if (variant == Tiles::row_left_out && r == rows - 1) continue;
      reinterpret_cast<float4*>(vs)[i] = inside ? reinterpret_cast<const float4*>(v)[from] : zero;
    }
    if (variant != Tiles::no_barrier_after_fill) __syncthreads();
    if (variant == Tiles::early_return && t >= threads - 32) return;
    add_rows(sum, ks, vs);
    if (variant != Tiles::no_barrier_before_fill) __syncthreads();
  }
  store(out + size_t{blockIdx.x} * width * width, sum);
}

template <Stages variant>
__global__ void __launch_bounds__(threads)
    multiply_stages_kernel(const float* __restrict__ k, const float* __restrict__ v,
                           float* __restrict__ out, int n) {
  constexpr int stage_floats = 2 * rows * width;
  float* const stages = dynamic_shared<float>();
  k += size_t{blockIdx.x} * n * width;
  v += size_t{blockIdx.x} * n * width;
  const auto fetch = [&](int base, int stage) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * 16; i += threads) {
      const bool inside = base + i / 16 < n;
      const size_t from = inside ? size_t(base) * width + i * 4 : 0;
      float* to = stages + stage * stage_floats + i * 4;
      ptx::copy_async<16>(to, k + from, inside);
      ptx::copy_async<16>(to + rows * width, v + from, inside);
    }
    ptx::copy_commit();
  };
  float sum[4][4] = {};
  fetch(0, 0);
  int stage = 0;
  for (int base = 0; base < n; base += rows) {
    if (base + rows < n) {
      fetch(base + rows, stage ^ 1);
      if (variant != Stages::no_wait) ptx::copy_wait<1>();
    } else if (variant != Stages::never_awaited) {
      ptx::copy_wait<0>();
    }
    __syncthreads();
    const float* const ks = stages + stage * stage_floats;
    if (variant != Stages::never_awaited || base + rows < n) add_rows(sum, ks, ks + rows * width);
    if (variant != Stages::no_barrier_before_fill) __syncthreads();
    stage ^= 1;
  }
  store(out + size_t{blockIdx.x} * width * width, sum);
}

}  // namespace

void multiply_tiles(const float* k, const float* v, float* out, int n, int batch, Tiles variant,
                    cudaStream_t stream) {
  const auto kernel = variant == Tiles::correct ? multiply_tiles_kernel<Tiles::correct>
                      : variant == Tiles::no_barrier_after_fill
                          ? multiply_tiles_kernel<Tiles::no_barrier_after_fill>
                      : variant == Tiles::no_barrier_before_fill
                          ? multiply_tiles_kernel<Tiles::no_barrier_before_fill>
                      : variant == Tiles::row_left_out ? multiply_tiles_kernel<Tiles::row_left_out>
                      : variant == Tiles::no_bound_check
                          ? multiply_tiles_kernel<Tiles::no_bound_check>
                          : multiply_tiles_kernel<Tiles::early_return>;
  launch(kernel, dim3(batch), dim3(threads), 0, stream, k, v, out, n);
}

void multiply_stages(const float* k, const float* v, float* out, int n, int batch, Stages variant,
                     cudaStream_t stream) {
  const auto kernel = variant == Stages::correct   ? multiply_stages_kernel<Stages::correct>
                      : variant == Stages::no_wait ? multiply_stages_kernel<Stages::no_wait>
                      : variant == Stages::no_barrier_before_fill
                          ? multiply_stages_kernel<Stages::no_barrier_before_fill>
                          : multiply_stages_kernel<Stages::never_awaited>;
  launch(kernel, dim3(batch), dim3(threads), 4 * rows * width * sizeof(float), stream, k, v, out,
         n);
}

}  // namespace quipu::testing
