// One mistake a kernel, at the line with the arrow; where two accesses race, each may be the later.
#include "kernels.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {
namespace {

constexpr unsigned everyone = 0xffffffffu;

__global__ void shared_race(int* p) {
  __shared__ int s[64];
  s[threadIdx.x] = 1;                    // <-
  p[threadIdx.x] = s[63 - threadIdx.x];  // <-
}

__global__ void no_syncwarp(int* p) {
  __shared__ int s[32];
  s[threadIdx.x] = 1;                    // <-
  p[threadIdx.x] = s[31 - threadIdx.x];  // <-
}

__global__ void half_syncwarp(int* p) {
  __shared__ int s[64];
  s[threadIdx.x] = 1;  // <-
  __syncwarp();
  p[threadIdx.x] = s[63 - threadIdx.x];  // <-
}

__global__ void all_write_one_flag(int* p) {
  __shared__ int flag;
  flag = 1;  // <-
  __syncthreads();
  p[threadIdx.x] = flag;
}

__global__ void byte_race(int* p) {
  __shared__ unsigned char s[64];
  s[threadIdx.x / 2] = 1;  // <-
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x / 2];
}

__global__ void write_after_read(int* p) {
  p[threadIdx.x] = p[(threadIdx.x + 1) % blockDim.x];  // <-
}

__global__ void plain_after_atomic(int* p) {
  atomicAdd(p, 1);            // <-
  p[1 + threadIdx.x] = p[0];  // <-
}

__global__ void blocks_write_one_word(int* p) {
  if (threadIdx.x == 0) p[0] = static_cast<int>(blockIdx.x);  // <-
}

__global__ void block_reads_what_another_writes(int* p) {
  p[blockIdx.x * 64 + threadIdx.x] = p[(1 - blockIdx.x) * 64 + threadIdx.x];  // <-
}

__global__ void beyond_allocation(int* p) {
  p[1000 + threadIdx.x] = 1;  // <-
}

__global__ void before_allocation(int* p) {
  p[-1] = 1;  // <-
}

__global__ void beyond_dynamic_shared(int* p) {
  int* s = dynamic_shared<int>();
  s[threadIdx.x + 1] = 1;  // <-
  p[threadIdx.x] = 0;
}

__global__ void beyond_static_shared(int* p) {
  __shared__ int s[48];
  s[threadIdx.x] = 1;  // <-
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x % 48];
}

__global__ void beyond_registers(int* p) {
  int r[8] = {};
  for (int i = 0; i <= p[0] + 8; ++i) r[i] = p[i];  // <-
  p[threadIdx.x] = r[p[1]];
}

__global__ void uninitialised_shared(int* p) {
  __shared__ int s[64];
  if (threadIdx.x < 63) s[threadIdx.x] = 1;
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x];  // <-
}

__global__ void uninitialised_dynamic(int* p) {
  p[threadIdx.x] = dynamic_shared<int>()[threadIdx.x % 32];  // <-
}

__global__ void atomic_on_uninitialised(int* p) {
  __shared__ int s;
  atomicAdd(&s, 1);  // <-
  p[threadIdx.x] = 0;
}

__global__ void misaligned_vector(int* p) {
  *reinterpret_cast<int4*>(p + threadIdx.x) = make_int4(1, 2, 3, 4);  // <-
}

__global__ void misaligned_half(int* p) {
  *reinterpret_cast<short*>(reinterpret_cast<char*>(p) + 1) = 1;  // <-
}

__global__ void barrier_in_a_branch(int* p) {
  if (threadIdx.x < 32) __syncthreads();  // <-
  p[threadIdx.x] = 1;
}

__global__ void two_barriers(int* p) {
  if (threadIdx.x < 32) {
    __syncthreads();  // <-
  } else {
    p[threadIdx.x] = 1;
    __syncthreads();  // <-
  }
}

__global__ void return_before_barrier(int* p) {
  if (threadIdx.x == 5) return;
  __syncthreads();  // <-
  p[threadIdx.x] = 1;
}

__global__ void shuffle_in_a_branch(int* p) {
  int v = 1;
  if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(everyone, v, 1);  // <-
  p[threadIdx.x] = v;
}

__global__ void shuffle_from_outside(int* p) {
  int v = 1;
  if (threadIdx.x % 32 < 16) v = __shfl_sync(0xffffu, v, 20);  // <-
  p[threadIdx.x] = v;
}

__global__ void not_in_its_mask(int* p) {
  __syncwarp(threadIdx.x % 32 == 0 ? 2u : everyone & ~1u);  // <-
  p[threadIdx.x] = 1;
}

__global__ void vote_and_shuffle_meet(int* p) {
  int v = 1;
  if (threadIdx.x % 2) {
    v = __any_sync(everyone, v);  // <-
  } else {
    v = __shfl_sync(everyone, v, 0);  // <-
  }
  p[threadIdx.x] = v;
}

__global__ void shuffle_waits_for_barrier(int* p) {
  int v = 1;
  if (threadIdx.x < 16) v = __shfl_sync(everyone, v, 0);  // <-
  __syncthreads();                                        // <-
  p[threadIdx.x] = v;
}

__global__ void copy_read_too_early(int* p) {
  __shared__ int s[64];
  ptx::copy_async<4>(&s[threadIdx.x], p);
  ptx::copy_commit();
  p[64 + threadIdx.x] = s[threadIdx.x];  // <-
  ptx::copy_wait<0>();
}

__global__ void copy_without_barrier(int* p) {
  __shared__ int s[64];
  ptx::copy_async<4>(&s[threadIdx.x], p);  // <-
  ptx::copy_commit();
  ptx::copy_wait<0>();
  p[64 + threadIdx.x] = s[63 - threadIdx.x];  // <-
}

__global__ void copy_never_awaited(int* p) {
  __shared__ int s[64];
  ptx::copy_async<4>(&s[threadIdx.x], p);  // <-
  ptx::copy_commit();
}

__global__ void copy_misaligned(int* p) {
  __shared__ __align__(16) int s[256];
  ptx::copy_async<16>(&s[4 * threadIdx.x], p + 1);  // <-
  ptx::copy_commit();
  ptx::copy_wait<0>();
}

__global__ void spins_for_ever(int* p) {
  while (atomicAdd(p, 0) != static_cast<int>(gridDim.x)) {  // <-
  }
}

__global__ void trapped(int* p) {
  if (p[threadIdx.x] == 0) __trap();  // <-
}

template <void (*kernel)(int*), unsigned blocks, unsigned threads>
void run(int* p, cudaStream_t stream) {
  launch(kernel, dim3(blocks), dim3(threads), 32 * sizeof(int), stream, p);
}

template <void (*kernel)(int*), unsigned blocks, unsigned threads>
Fault entry(const char* name, const char* kind) {
  return {name, kind, run<kernel, blocks, threads>};
}
#define ENTRY(name, blocks, threads, kind) entry<name, blocks, threads>(#name, kind)

}  // namespace

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all{
      ENTRY(shared_race, 1, 64, "race"),
      ENTRY(no_syncwarp, 1, 32, "race"),
      ENTRY(half_syncwarp, 1, 64, "race"),
      ENTRY(all_write_one_flag, 1, 64, "race"),
      ENTRY(byte_race, 1, 64, "race"),
      ENTRY(write_after_read, 1, 64, "race"),
      ENTRY(plain_after_atomic, 1, 64, "race"),
      ENTRY(blocks_write_one_word, 2, 32, "race"),
      ENTRY(block_reads_what_another_writes, 2, 64, "race"),
      ENTRY(beyond_allocation, 1, 64, "out of bounds"),
      ENTRY(before_allocation, 1, 1, "out of bounds"),
      ENTRY(beyond_dynamic_shared, 1, 32, "out of bounds"),
      ENTRY(beyond_static_shared, 1, 64, "out of bounds"),
      ENTRY(beyond_registers, 1, 1, "out of bounds"),
      ENTRY(uninitialised_shared, 1, 64, "uninitialised read"),
      ENTRY(uninitialised_dynamic, 1, 64, "uninitialised read"),
      ENTRY(atomic_on_uninitialised, 1, 64, "uninitialised read"),
      ENTRY(misaligned_vector, 1, 64, "misaligned access"),
      ENTRY(misaligned_half, 1, 1, "misaligned access"),
      ENTRY(barrier_in_a_branch, 1, 64, "barrier divergence"),
      ENTRY(two_barriers, 1, 64, "barrier divergence"),
      ENTRY(return_before_barrier, 1, 64, "barrier divergence"),
      ENTRY(shuffle_in_a_branch, 1, 64, "warp divergence"),
      ENTRY(shuffle_from_outside, 1, 64, "warp divergence"),
      ENTRY(not_in_its_mask, 1, 32, "warp divergence"),
      ENTRY(vote_and_shuffle_meet, 1, 32, "warp divergence"),
      ENTRY(shuffle_waits_for_barrier, 1, 64, "deadlock"),
      ENTRY(copy_read_too_early, 1, 64, "unfinished copy"),
      ENTRY(copy_without_barrier, 1, 64, "race"),
      ENTRY(copy_never_awaited, 1, 64, "unfinished copy"),
      ENTRY(copy_misaligned, 1, 64, "misaligned access"),
      ENTRY(spins_for_ever, 1, 64, "deadlock"),
      ENTRY(trapped, 1, 64, "trap"),
  };
  return all;
}

__global__ void read_pointer_kernel(const int* from, int* to) {
  to[threadIdx.x] = from[threadIdx.x];
}

void read_pointer(const int* from, int* to, cudaStream_t stream) {
  launch(read_pointer_kernel, dim3(1), dim3(32), 0, stream, from, to);
}

}  // namespace quipu::testing
