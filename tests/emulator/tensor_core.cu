// Tensor cores through ptx.h.
//
// sass gemm_bf16_kernel: need HMMA.16816.F32.BF16 LDSM.16.MT88.4 LDSM.16.M88.4 LDGSTS.E.BYPASS.128
// STG.E.64; forbid STL LDL LD.E ST.E; registers 96; shared 18432
//
// sass one_mma_f16_kernel: need HMMA.16816.F32
//
// sass one_mma_tf32_kernel: need HMMA.1688.F32.TF32
#include "kernels.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {
namespace {

/// A block is 64 x 64 outputs, each of four warps 16 rows. A pitch of 72 puts the rows that
/// ldmatrix reads together into different banks.
template <int pitch>
__global__ void __launch_bounds__(128)
    gemm_bf16_kernel(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                     float* __restrict__ c, int k) {
  __shared__ __align__(16) __nv_bfloat16 as[64][pitch];
  __shared__ __align__(16) __nv_bfloat16 bs[64][pitch];
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  a += size_t{blockIdx.x} * 64 * k;
  b += size_t{blockIdx.x} * k * 64;
  c += size_t{blockIdx.x} * 64 * 64;
  float sum[8][4] = {};
  for (int base = 0; base < k; base += 64) {
    for (int i = t; i < 64 * 8; i += 128) {
      const int r = i / 8, column = i % 8 * 8;
      ptx::copy_async<16>(&as[r][column], a + size_t(r) * k + base + column);
      ptx::copy_async<16>(&bs[r][column], b + size_t(base + r) * 64 + column);
    }
    ptx::copy_commit();
    ptx::copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int p = 0; p < 64; p += 16) {
      unsigned left[4];
      ptx::ldmatrix(left, &as[warp * 16 + lane % 16][p + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned right[4];
        ptx::ldmatrix<4, true>(right, &bs[p + lane % 16][n * 16 + lane / 16 * 8]);
        ptx::mma_bf16(sum[2 * n], left, {right[0], right[1]});
        ptx::mma_bf16(sum[2 * n + 1], left, {right[2], right[3]});
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + half * 8;
      reinterpret_cast<float2*>(c)[row * 32 + n * 4 + lane % 4] =
          make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
    }
  }
}

__device__ void store_16x8(float* d, const float (&sum)[4]) {
  const int group = static_cast<int>(threadIdx.x / 4), member = static_cast<int>(threadIdx.x % 4);
  for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * member + i % 2] = sum[i];
}

__global__ void one_mma_f16_kernel(const __half* a, const __half* b, float* d) {
  const int group = static_cast<int>(threadIdx.x / 4), member = static_cast<int>(threadIdx.x % 4);
  const auto pair = [](__half low, __half high) {
    return unsigned{__half_as_ushort(low)} | unsigned{__half_as_ushort(high)} << 16;
  };
  unsigned left[4], right[2];
  for (int i = 0; i < 4; ++i) {
    const __half* at = a + (group + i % 2 * 8) * 16 + 2 * member + i / 2 * 8;
    left[i] = pair(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) {
    const __half* at = b + (2 * member + i * 8) * 8 + group;
    right[i] = pair(at[0], at[8]);
  }
  float sum[4] = {};
  ptx::mma_f16(sum, left, right);
  store_16x8(d, sum);
}

__global__ void one_mma_tf32_kernel(const float* a, const float* b, float* d) {
  const int group = static_cast<int>(threadIdx.x / 4), member = static_cast<int>(threadIdx.x % 4);
  unsigned left[4], right[2];
  for (int i = 0; i < 4; ++i) {
    left[i] = ptx::to_tf32(a[(group + i % 2 * 8) * 8 + member + i / 2 * 4]);
  }
  for (int i = 0; i < 2; ++i) right[i] = ptx::to_tf32(b[(member + i * 4) * 8 + group]);
  float sum[4] = {};
  ptx::mma_tf32(sum, left, right);
  store_16x8(d, sum);
}

template <int count, bool transposed>
__device__ void load_and_store(unsigned* out, const unsigned short* rows) {
  unsigned r[count];
  ptx::ldmatrix<count, transposed>(r, rows + threadIdx.x * 8);
  for (int i = 0; i < count; ++i) out[threadIdx.x * 4 + i] = r[i];
}

__global__ void matrix_loads_kernel(const unsigned short* matrices, unsigned* out) {
  __shared__ __align__(16) unsigned short rows[32 * 8];
  for (unsigned i = threadIdx.x; i < 32 * 8; i += 32) rows[i] = matrices[i];
  __syncthreads();
  load_and_store<1, false>(out, rows);
  load_and_store<1, true>(out + 128, rows);
  load_and_store<2, false>(out + 256, rows);
  load_and_store<2, true>(out + 384, rows);
  load_and_store<4, false>(out + 512, rows);
  load_and_store<4, true>(out + 640, rows);
}

}  // namespace

void gemm_bf16(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c, int k, int batch,
               int pitch, cudaStream_t stream) {
  launch(pitch == 64 ? gemm_bf16_kernel<64> : gemm_bf16_kernel<72>, dim3(batch), dim3(128), 0,
         stream, a, b, c, k);
}

void one_mma_f16(const __half* a, const __half* b, float* d, cudaStream_t stream) {
  launch(one_mma_f16_kernel, dim3(1), dim3(32), 0, stream, a, b, d);
}

void one_mma_tf32(const float* a, const float* b, float* d, cudaStream_t stream) {
  launch(one_mma_tf32_kernel, dim3(1), dim3(32), 0, stream, a, b, d);
}

void matrix_loads(const unsigned short* matrices, unsigned* out, cudaStream_t stream) {
  launch(matrix_loads_kernel, dim3(1), dim3(32), 0, stream, matrices, out);
}

}  // namespace quipu::testing
