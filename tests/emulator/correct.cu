// Correct kernels of different shapes: warps, atomics, the last block, bytes.
//
// sass softmax_rows_kernel: need LDG.E.64 STG.E.64 SHFL.BFLY; forbid STL LDL LD.E ST.E; registers
// 32
//
// sass axpy_kernel: need LDG.E.128 STG.E.128; forbid STL LDL LD.E ST.E; registers 32 40@86,89;
//   shared 0
#include "kernels.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {
namespace {

constexpr unsigned everyone = 0xffffffffu;

__device__ __forceinline__ float warp_max(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(everyone, x, lanes));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(everyone, x, lanes);
  return x;
}

__global__ void __launch_bounds__(256)
    softmax_rows_kernel(const __nv_bfloat16* __restrict__ in, __nv_bfloat16* __restrict__ out,
                        int rows) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;  // whole warps
  union {
    uint2 bits;
    __nv_bfloat162 pair[2];
  } u;
  u.bits = reinterpret_cast<const uint2*>(in)[row * 32 + lane];
  float2 a = __bfloat1622float2(u.pair[0]), b = __bfloat1622float2(u.pair[1]);
  const float most = warp_max(fmaxf(fmaxf(a.x, a.y), fmaxf(b.x, b.y)));
  a = make_float2(__expf(a.x - most), __expf(a.y - most));
  b = make_float2(__expf(b.x - most), __expf(b.y - most));
  const float scale = 1.0f / warp_sum(a.x + a.y + b.x + b.y);
  u.pair[0] = __floats2bfloat162_rn(a.x * scale, a.y * scale);
  u.pair[1] = __floats2bfloat162_rn(b.x * scale, b.y * scale);
  reinterpret_cast<uint2*>(out)[row * 32 + lane] = u.bits;
}

__global__ void histogram_kernel(const int* __restrict__ in, int* __restrict__ out, int n) {
  __shared__ int bins[64];
  if (threadIdx.x < 64) bins[threadIdx.x] = 0;
  __syncthreads();
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += stride) {
    atomicAdd(&bins[__ldg(in + i) & 63], 1);
  }
  __syncthreads();
  if (threadIdx.x < 64) atomicAdd(out + threadIdx.x, bins[threadIdx.x]);
}

template <LastBlock variant>
__global__ void sum_last_block_kernel(const float* __restrict__ in, float* parts, unsigned* counter,
                                      float* out, int n) {
  __shared__ float of_warp[8];
  __shared__ bool last;
  float sum = 0;
  const int stride = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += stride) {
    sum += in[i];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  // Two threads leave a part each, so that the barrier before the fence matters.
  if (threadIdx.x < 2) {
    float part = 0;
    for (int w = static_cast<int>(threadIdx.x); w < 8; w += 2) part += of_warp[w];
    parts[blockIdx.x * 2 + threadIdx.x] = part;
  }
  if (variant != LastBlock::no_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    if (variant != LastBlock::no_fence) __threadfence();
    last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x >= 32) return;
  sum = 0;
  for (unsigned i = threadIdx.x; i < 2 * gridDim.x; i += 32) sum += parts[i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

template <Turns variant>
__global__ void add_in_turn_kernel(unsigned* out, unsigned* turn, unsigned* tickets) {
  __shared__ unsigned mine;
  if (threadIdx.x == 0) {
    const unsigned number =
        variant != Turns::no_tickets ? atomicAdd(tickets, 1u) : gridDim.x - 1 - blockIdx.x;
    while (ptx::load_acquire(turn) < number) __nanosleep(64);
    mine = number;
  }
  __syncthreads();
  const unsigned before = mine > 0 ? out[threadIdx.x] : 0;
  out[threadIdx.x] = 3 * before + mine;
  if (variant != Turns::no_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    if (variant != Turns::no_fence) __threadfence();
    atomicAdd(turn, 1u);
  }
}

__global__ void add_one_bytes_kernel(const unsigned char* in, unsigned char* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = static_cast<unsigned char>(in[i] + 1);
}

__global__ void axpy_kernel(float a, const float* __restrict__ x, float* __restrict__ y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (4 * i + 3 < n) {
    const float4 u = reinterpret_cast<const float4*>(x)[i];
    float4 v = reinterpret_cast<float4*>(y)[i];
    v = make_float4(a * u.x + v.x, a * u.y + v.y, a * u.z + v.z, a * u.w + v.w);
    reinterpret_cast<float4*>(y)[i] = v;
  } else {
    for (int k = 4 * i; k < n; ++k) y[k] += a * x[k];
  }
}

__global__ void read_twice_kernel(const float* in, const float* table, float* out, int n) {
  in += static_cast<long long>(blockIdx.x) * n;
  out += static_cast<long long>(blockIdx.x) * n;
  const float added = table[threadIdx.x];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) sum += in[i];
  sum = warp_sum(sum);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) out[i] = in[i] * sum + added;
}

__global__ void read_same_twice_kernel(const float* in, float* out, int n) {
  out += static_cast<long long>(blockIdx.x) * n;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) sum += in[i];
  sum = warp_sum(sum);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32) out[i] = in[i] * sum;
}

__global__ void copy_columns_kernel(const float* in, float* out, int pitch) {
  __shared__ float tile[32][32];
  for (int r = 0; r < 32; ++r) tile[r][threadIdx.x] = in[threadIdx.x * pitch + r];
  __syncwarp();
  for (int r = 0; r < 32; ++r) out[r * 32 + threadIdx.x] = tile[threadIdx.x][r];
}

}  // namespace

void softmax_rows(const __nv_bfloat16* in, __nv_bfloat16* out, int rows, cudaStream_t stream) {
  launch(softmax_rows_kernel, dim3((rows + 7) / 8), dim3(256), 0, stream, in, out, rows);
}

void histogram(const int* in, int* out, int n, cudaStream_t stream) {
  launch(histogram_kernel, dim3(4), dim3(128), 0, stream, in, out, n);
}

void sum_last_block(const float* in, float* parts, unsigned* counter, float* out, int n,
                    LastBlock variant, cudaStream_t stream) {
  const auto kernel = variant == LastBlock::correct ? sum_last_block_kernel<LastBlock::correct>
                      : variant == LastBlock::no_fence
                          ? sum_last_block_kernel<LastBlock::no_fence>
                          : sum_last_block_kernel<LastBlock::no_barrier>;
  launch(kernel, dim3(12), dim3(256), 0, stream, in, parts, counter, out, n);
}

void add_in_turn(unsigned* out, unsigned* turn, unsigned* tickets, Turns variant,
                 cudaStream_t stream) {
  const auto kernel = variant == Turns::correct      ? add_in_turn_kernel<Turns::correct>
                      : variant == Turns::no_fence   ? add_in_turn_kernel<Turns::no_fence>
                      : variant == Turns::no_barrier ? add_in_turn_kernel<Turns::no_barrier>
                                                     : add_in_turn_kernel<Turns::no_tickets>;
  launch(kernel, dim3(12), dim3(64), 0, stream, out, turn, tickets);
}

void add_one_bytes(const unsigned char* in, unsigned char* out, int n, cudaStream_t stream) {
  launch(add_one_bytes_kernel, dim3((n + 100) / 101), dim3(101), 0, stream, in, out, n);
}

void axpy(float a, const float* x, float* y, int n, cudaStream_t stream) {
  launch(axpy_kernel, dim3((n + 1023) / 1024), dim3(256), 0, stream, a, x, y, n);
}

void read_twice(const float* in, const float* table, float* out, int n, int blocks,
                cudaStream_t stream) {
  launch(read_twice_kernel, dim3(static_cast<unsigned>(blocks)), dim3(32), 0, stream, in, table,
         out, n);
}

void read_same_twice(const float* in, float* out, int n, int blocks, cudaStream_t stream) {
  launch(read_same_twice_kernel, dim3(static_cast<unsigned>(blocks)), dim3(32), 0, stream, in, out,
         n);
}

void copy_columns(const float* in, float* out, int pitch, cudaStream_t stream) {
  launch(copy_columns_kernel, dim3(1), dim3(32), 0, stream, in, out, pitch);
}

}  // namespace quipu::testing
