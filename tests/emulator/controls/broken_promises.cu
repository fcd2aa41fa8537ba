// Kernels that keep none of their promises; sass_check must say so.
//
// sass strided_copy_kernel: need LDG.E.128; forbid STG.E; registers 2
// sass no_such_kernel: need LDG.E
// sass strided_copy_kernel<{Pointwise:sin,no_such_function}: need LDG.E
//
// 60 KiB of shared memory: one block on a multiprocessor of 100 KiB, two or three on the others.
//
// sass stage_kernel: blocks 2@86,89,120 3@80 4@90; dynamic 20480
// sass stage_kernel: blocks 9; threads 256
// sass strided_copy_kernel: blocks 1
//
// The loop has a load, four multiply-adds and at least two instructions that count and branch.
//
// sass polynomial_kernel: slots 6 LDG.E
// sass strided_copy_kernel: slots 1 LDG.E/4
// sass strided_copy_kernel: slots few LDG.E
// sass strided_copy_kernel: bloks 2
#include "quipu/cuda/launch.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {

__global__ void strided_copy_kernel(const float* from, float* to, int stride) {
  to[threadIdx.x] = from[static_cast<int>(threadIdx.x) * stride];
}

// No rule has its name, but its array is in local memory.
__global__ void indexed_array_kernel(const int* from, int* to) {
  int counts[32] = {};
  for (int i = 0; i < 256; ++i) ++counts[from[i] & 31];
  to[threadIdx.x] = counts[to[threadIdx.x] & 31];
}

__global__ void __launch_bounds__(128) stage_kernel(const float* from, float* to) {
  __shared__ float stage[40 * 256];
  for (int i = static_cast<int>(threadIdx.x); i < 40 * 256; i += 128) stage[i] = from[i];
  __syncthreads();
  to[threadIdx.x] = stage[static_cast<int>(to[threadIdx.x])];
}

__global__ void polynomial_kernel(const float* from, float* to, int n) {
  float sum = 0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) {
    const float x = from[i];
    sum += (((x * 0.3F + 0.5F) * x + 0.7F) * x + 0.9F) * x;
  }
  to[threadIdx.x] = sum;
}

// No rule says how many of its blocks fit on a multiprocessor.
__global__ void product_kernel(const unsigned* from, float* to) {
  float sum[4] = {};
  const unsigned a[4] = {from[0], from[1], from[2], from[3]}, b[2] = {from[4], from[5]};
  ptx::mma_bf16(sum, a, b);
  to[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}

}  // namespace quipu::testing
