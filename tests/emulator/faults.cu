// One mistake a kernel. The line that has to be reported is marked by the line it is on: each fault
// is entered in the table with `mark` of that line.
#include "kernels.h"
#include "quipu/cuda/ptx.h"

namespace quipu::testing {
namespace {

constexpr unsigned everyone = 0xffffffffu;

/// Defines a kernel whose body is on the line after; that line is where the mistake is.
#define KERNEL(name)                             \
  constexpr unsigned name##_line = __LINE__ + 1; \
  __global__ void name(int* p)

// clang-format off
KERNEL(shared_race)
{ __shared__ int s[64]; s[threadIdx.x] = 1; p[threadIdx.x] = s[63 - threadIdx.x]; }
KERNEL(no_syncwarp)
{ __shared__ int s[32]; s[threadIdx.x] = 1; p[threadIdx.x] = s[31 - threadIdx.x]; }
KERNEL(half_syncwarp)
{ __shared__ int s[64]; s[threadIdx.x] = 1; __syncwarp(); p[threadIdx.x] = s[63 - threadIdx.x]; }
KERNEL(all_write_one_flag)
{ __shared__ int flag; flag = 1; __syncthreads(); p[threadIdx.x] = flag; }
KERNEL(byte_race)
{ __shared__ char s[64]; s[threadIdx.x / 2] = 1; __syncthreads(); p[threadIdx.x] = s[threadIdx.x / 2]; }
KERNEL(write_after_read)
{ p[threadIdx.x] = p[(threadIdx.x + 1) % blockDim.x]; }
KERNEL(plain_after_atomic)
{ atomicAdd(p, 1); p[1 + threadIdx.x] = p[0]; }
KERNEL(blocks_write_one_word)
{ if (threadIdx.x == 0) p[0] = static_cast<int>(blockIdx.x); }
KERNEL(block_reads_what_another_writes)
{ p[blockIdx.x * 64 + threadIdx.x] = p[(1 - blockIdx.x) * 64 + threadIdx.x]; }
KERNEL(beyond_allocation)
{ p[1000 + threadIdx.x] = 1; }
KERNEL(before_allocation)
{ p[-1] = 1; }
KERNEL(beyond_dynamic_shared)
{ int* s = dynamic_shared<int>(); s[threadIdx.x + 1] = 1; p[threadIdx.x] = 0; }
KERNEL(beyond_static_shared)
{ __shared__ int s[48]; s[threadIdx.x] = 1; __syncthreads(); p[threadIdx.x] = s[threadIdx.x % 48]; }
KERNEL(beyond_registers)
{ int r[8] = {}; for (int i = 0; i <= p[0] + 8; ++i) r[i] = p[i]; p[threadIdx.x] = r[p[1]]; }
KERNEL(uninitialised_shared)
{ __shared__ int s[64]; if (threadIdx.x < 63) s[threadIdx.x] = 1; __syncthreads(); p[threadIdx.x] = s[threadIdx.x]; }
KERNEL(uninitialised_dynamic)
{ p[threadIdx.x] = dynamic_shared<int>()[threadIdx.x % 32]; }
KERNEL(atomic_on_uninitialised)
{ __shared__ int s; atomicAdd(&s, 1); p[threadIdx.x] = 0; }
KERNEL(misaligned_vector)
{ *reinterpret_cast<int4*>(p + threadIdx.x) = make_int4(1, 2, 3, 4); }
KERNEL(misaligned_half)
{ *reinterpret_cast<short*>(reinterpret_cast<char*>(p) + 1) = 1; }
KERNEL(barrier_in_a_branch)
{ if (threadIdx.x < 32) __syncthreads(); p[threadIdx.x] = 1; }
KERNEL(two_barriers)
{ if (threadIdx.x < 32) { __syncthreads(); } else { p[threadIdx.x] = 1; __syncthreads(); } }
KERNEL(return_before_barrier)
{ if (threadIdx.x == 5) return; __syncthreads(); p[threadIdx.x] = 1; }
KERNEL(shuffle_in_a_branch)
{ int v = 1; if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(everyone, v, 1); p[threadIdx.x] = v; }
KERNEL(shuffle_from_outside)
{ int v = 1; if (threadIdx.x % 32 < 16) v = __shfl_sync(0xffffu, v, 20); p[threadIdx.x] = v; }
KERNEL(not_in_its_mask)
{ __syncwarp(threadIdx.x % 32 == 0 ? 2u : everyone & ~1u); p[threadIdx.x] = 1; }
KERNEL(vote_and_shuffle_meet)
{ int v = 1; if (threadIdx.x % 2) v = __any_sync(everyone, v); else v = __shfl_sync(everyone, v, 0); p[threadIdx.x] = v; }
KERNEL(shuffle_waits_for_barrier)
{ int v = 1; if (threadIdx.x < 16) v = __shfl_sync(everyone, v, 0); __syncthreads(); p[threadIdx.x] = v; }
KERNEL(copy_read_too_early)
{ __shared__ int s[64]; ptx::copy_async<4>(&s[threadIdx.x], p); ptx::copy_commit(); p[64 + threadIdx.x] = s[threadIdx.x]; ptx::copy_wait<0>(); }
KERNEL(copy_without_barrier)
{ __shared__ int s[64]; ptx::copy_async<4>(&s[threadIdx.x], p); ptx::copy_commit(); ptx::copy_wait<0>(); p[64 + threadIdx.x] = s[63 - threadIdx.x]; }
KERNEL(copy_never_awaited)
{ __shared__ int s[64]; ptx::copy_async<4>(&s[threadIdx.x], p); ptx::copy_commit(); }
KERNEL(copy_misaligned)
{ __shared__ __align__(16) int s[256]; ptx::copy_async<16>(&s[4 * threadIdx.x], p + 1); ptx::copy_commit(); ptx::copy_wait<0>(); }
KERNEL(trapped)
{ if (p[threadIdx.x] == 0) __trap(); }

// What looks like a mistake and is none.
KERNEL(with_syncwarp)
{ __shared__ int s[32]; const unsigned i = threadIdx.x % 32; if (threadIdx.x < 32) { s[i] = 1; __syncwarp(); p[i] = s[31 - i]; __syncwarp(); s[31 - i] = 2; } }
KERNEL(read_then_owner_writes)
{ __shared__ int s[32]; if (threadIdx.x < 32) { s[threadIdx.x] = 1; __syncwarp(); p[threadIdx.x] = s[4]; __syncwarp(); if (threadIdx.x == 4) s[4] += 1; } }
KERNEL(atomics_meet)
{ atomicAdd(p, 1); atomicMax(p + 1, 5); }
KERNEL(masks_of_two_halves)
{ int v = 1; if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffu, v, 1); else v = __shfl_xor_sync(0xffff0000u, v, 2); if (blockIdx.x == 0) p[threadIdx.x] = v; }
KERNEL(bytes_of_neighbours)
{ reinterpret_cast<char*>(p)[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
KERNEL(halves_then_words)
{ __shared__ __align__(4) short s[64]; s[threadIdx.x] = 1; __syncthreads(); if (threadIdx.x < 32) { reinterpret_cast<int*>(s)[threadIdx.x] += 1; } __syncthreads(); if (blockIdx.x == 0) p[threadIdx.x] = s[63 - threadIdx.x]; }
KERNEL(whole_warps_leave)
{ if (threadIdx.x >= 32) return; const int v = __shfl_sync(everyone, static_cast<int>(threadIdx.x), 3); if (blockIdx.x == 0) p[threadIdx.x] = v; }
KERNEL(constants_are_read)
{ constexpr int table[64] = {3, 1, 4, 1, 5}; if (blockIdx.x == 0) p[threadIdx.x] = table[p[threadIdx.x] + 2]; }
KERNEL(reads_shared_by_all)
{ const int v = p[1023]; if (blockIdx.x == 0) p[threadIdx.x] = v; }
// clang-format on
#undef KERNEL

template <void (*Kernel)(int*), unsigned Blocks, unsigned Threads>
void run(int* p, cudaStream_t stream) {
  launch(Kernel, dim3(Blocks), dim3(Threads), 32 * sizeof(int), stream, p);
}
#define ENTRY(name, blocks, threads, kind)                 \
  Fault {                                                  \
#name, kind, name##_line, run < name, blocks, threads> \
  }

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
      ENTRY(trapped, 1, 64, "trap"),
  };
  return all;
}

const std::vector<Fault>& look_alikes() {
  static const std::vector<Fault> all{
      ENTRY(with_syncwarp, 1, 64, ""),       ENTRY(read_then_owner_writes, 1, 64, ""),
      ENTRY(atomics_meet, 4, 64, ""),        ENTRY(masks_of_two_halves, 2, 64, ""),
      ENTRY(bytes_of_neighbours, 3, 37, ""), ENTRY(halves_then_words, 2, 64, ""),
      ENTRY(whole_warps_leave, 2, 96, ""),   ENTRY(constants_are_read, 2, 32, ""),
      ENTRY(reads_shared_by_all, 4, 64, ""),
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
