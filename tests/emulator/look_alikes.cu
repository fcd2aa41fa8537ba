// What looks like a mistake and is none.
//
// sass constants_are_read: local 256
#include "kernels.h"

namespace quipu::testing {
namespace {

constexpr unsigned everyone = 0xffffffffu;

__global__ void with_syncwarp(int* p) {
  __shared__ int s[32];
  const unsigned i = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    s[i] = 1;
    __syncwarp();
    p[i] = s[31 - i];
    __syncwarp();
    s[31 - i] = 2;
  }
}

__global__ void read_then_owner_writes(int* p) {
  __shared__ int s[32];
  if (threadIdx.x < 32) {
    s[threadIdx.x] = 1;
    __syncwarp();
    p[threadIdx.x] = s[4];
    __syncwarp();
    if (threadIdx.x == 4) s[4] += 1;
  }
}

__global__ void atomics_meet(int* p) {
  atomicAdd(p, 1);
  atomicMax(p + 1, 5);
}

__global__ void masks_of_two_halves(int* p) {
  int v = 1;
  if (threadIdx.x % 32 < 16) {
    v = __shfl_xor_sync(0xffffu, v, 1);
  } else {
    v = __shfl_xor_sync(0xffff0000u, v, 2);
  }
  if (blockIdx.x == 0) p[threadIdx.x] = v;
}

__global__ void bytes_of_neighbours(int* p) {
  reinterpret_cast<char*>(p)[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

__global__ void halves_then_words(int* p) {
  __shared__ __align__(4) short s[64];
  s[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x < 32) {
    reinterpret_cast<int*>(s)[threadIdx.x] += 1;
  }
  __syncthreads();
  if (blockIdx.x == 0) p[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void spins_for_another_warp(int* p) {
  if (threadIdx.x == 0) {
    while (atomicAdd(p, 0) != static_cast<int>(blockDim.x) - 1) {
    }
  } else {
    atomicAdd(p, 1);
  }
}

__global__ void whole_warps_leave(int* p) {
  if (threadIdx.x >= 32) return;
  const int v = __shfl_sync(everyone, static_cast<int>(threadIdx.x), 3);
  if (blockIdx.x == 0) p[threadIdx.x] = v;
}

__global__ void constants_are_read(int* p) {
  constexpr int table[64] = {3, 1, 4, 1, 5};
  if (blockIdx.x == 0) p[threadIdx.x] = table[p[threadIdx.x] + 2];
}

__global__ void reads_shared_by_all(int* p) {
  const int v = p[1023];
  if (blockIdx.x == 0) p[threadIdx.x] = v;
}

template <void (*kernel)(int*), unsigned blocks, unsigned threads>
void run(int* p, cudaStream_t stream) {
  launch(kernel, dim3(blocks), dim3(threads), 32 * sizeof(int), stream, p);
}

template <void (*kernel)(int*), unsigned blocks, unsigned threads>
Fault entry(const char* name) {
  return {name, "", run<kernel, blocks, threads>};
}
#define ENTRY(name, blocks, threads) entry<name, blocks, threads>(#name)

}  // namespace

const std::vector<Fault>& look_alikes() {
  static const std::vector<Fault> all{
      ENTRY(with_syncwarp, 1, 64),          ENTRY(read_then_owner_writes, 1, 64),
      ENTRY(atomics_meet, 4, 64),           ENTRY(masks_of_two_halves, 2, 64),
      ENTRY(bytes_of_neighbours, 3, 37),    ENTRY(halves_then_words, 2, 64),
      ENTRY(spins_for_another_warp, 1, 64), ENTRY(whole_warps_leave, 2, 96),
      ENTRY(constants_are_read, 2, 32),     ENTRY(reads_shared_by_all, 4, 64),
  };
  return all;
}

}  // namespace quipu::testing
