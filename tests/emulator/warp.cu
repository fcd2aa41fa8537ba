// Collectives of a warp, votes of a block, atomics: one result a row, checked by warp_test.cpp.
#include "kernels.h"

namespace quipu::testing {
namespace {

constexpr unsigned everyone = 0xffffffffu;

__global__ void warp_collectives_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int row = 0;
  const auto put = [&](auto value) { out[row++ * 32 + lane] = static_cast<int>(value); };
  put(__shfl_sync(everyone, lane, 5));
  put(__shfl_sync(everyone, lane, lane + 1, 8));
  put(__shfl_up_sync(everyone, lane, 3));
  put(__shfl_up_sync(everyone, lane, 3, 16));
  put(__shfl_down_sync(everyone, lane, 3));
  put(__shfl_down_sync(everyone, lane, 3, 8));
  put(__shfl_xor_sync(everyone, lane, 6));
  put(__shfl_sync(everyone, 0.5 * lane, 6) * 2);
  put(__ballot_sync(everyone, lane % 3 == 0));
  put(__any_sync(everyone, lane == 7));
  put(__all_sync(everyone, lane < 31));
  put(__reduce_add_sync(everyone, lane));
  put(__reduce_min_sync(everyone, lane - 10));
  put(__reduce_max_sync(everyone, unsigned(lane) - 10u));
  put(__reduce_xor_sync(everyone, unsigned(lane)));
  put(__match_any_sync(everyone, lane % 4));
  int all = 0;
  put(__match_all_sync(everyone, lane / 32, &all));
  put(all);
  put(__popc(__activemask()));
  put(__shfl_sync(everyone, __float2bfloat16(0.5f * lane), 3) == __float2bfloat16(1.5f));
}

__global__ void block_votes_kernel(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(t % 3 == 0), any = __syncthreads_or(t == 99);
  const int all = __syncthreads_and(t != 99);
  if (t == 0) out[0] = count, out[1] = any, out[2] = all;
}

__global__ void atomic_updates_kernel(unsigned* words, float* number, double* wide) {
  const unsigned t = threadIdx.x;
  atomicAdd(words, t);
  atomicMax(words + 1, t);
  atomicMin(words + 2, t);
  atomicOr(words + 3, 1u << (t % 32));
  atomicInc(words + 4, 6);
  atomicExch(words + 5, 7u);
  unsigned seen = words[7 + blockIdx.x * 64 + t];
  while (atomicCAS(words + 6, seen, seen + 1) != seen) ++seen;
  atomicAdd(number, 0.5f);
  atomicAdd(wide, 0.25);
}

}  // namespace

void warp_collectives(int* out, cudaStream_t stream) {
  launch(warp_collectives_kernel, dim3(1), dim3(32), 0, stream, out);
}

void block_votes(int* out, cudaStream_t stream) {
  launch(block_votes_kernel, dim3(1), dim3(100), 0, stream, out);
}

void atomic_updates(unsigned* words, float* number, double* wide, cudaStream_t stream) {
  launch(atomic_updates_kernel, dim3(2), dim3(64), 0, stream, words, number, wide);
}

}  // namespace quipu::testing
