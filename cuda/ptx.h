#pragma once
// The PTX instructions that CUDA C++ has no name for, one function each: inline PTX under nvcc, the
// documented lane mapping in the emulator. Kernels contain no asm of their own.
#include <cmath>
#include <cstdint>

#include "launch.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async and mma of bf16 and tf32 need sm_80 or later: look at CMAKE_CUDA_ARCHITECTURES"
#endif
#ifdef __CUDACC__
#define QUIPU_PTX_SITE
#else
#define QUIPU_PTX_SITE , emulator::Site at = emulator::Site::current()
#endif

namespace quipu::ptx {

// d (16 x 8) += a (16 x k) b (k x 8) by the 32 lanes of a warp. With group = lane / 4 and member =
// lane % 4 a lane holds
//   d: (group, 2 member), (group, 2 member + 1), the same in row group + 8;
//   a: pairs at (group, 2 member), (group + 8, 2 member), (group, 2 member + 8), (group + 8, ... +
//   8); b: pairs at (2 member, group), (2 member + 8, group).
// k is 16 for 16-bit operands. For tf32 k is 8 and the columns are member and member + 4.

__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2] QUIPU_PTX_SITE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::mma(emulator::Operand::bf16, d, a, b, at);
#endif
}

__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4],
                                        const unsigned (&b)[2] QUIPU_PTX_SITE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::mma(emulator::Operand::f16, d, a, b, at);
#endif
}

/// Operands are f32 bits of which the last 13 are not looked at; to_tf32 rounds them off.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2] QUIPU_PTX_SITE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulator::mma(emulator::Operand::tf32, d, a, b, at);
#endif
}

/// Rounds to nearest, ties away from zero.
__device__ __forceinline__ unsigned to_tf32(float x) {
#ifdef __CUDACC__
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  const unsigned bits = __float_as_uint(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return finite ? (bits + 0x1000u) & 0xffffe000u : bits;
#endif
}

/// Loads count (1, 2, 4) 8 x 8 matrices of 16-bit elements from shared memory. Lane l brings the
/// address of row l % 8 of matrix l / 8, aligned to 16 bytes, and gets elements 2 (l % 4) and the
/// next of row l / 4 of each; transposed, of column l / 4. The address is (row ^ flipped) + offset,
/// in bytes: the former is a swizzle, the latter costs nothing.
template <int count, bool transposed = false>
__device__ __forceinline__ void ldmatrix(unsigned (&r)[count], const void* row,
                                         unsigned flipped = 0, unsigned offset = 0 QUIPU_PTX_SITE) {
  static_assert(count == 1 || count == 2 || count == 4);
#ifdef __CUDACC__
  const unsigned p = (static_cast<unsigned>(__cvta_generic_to_shared(row)) ^ flipped) + offset;
  if constexpr (count == 1 && !transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(p)
                 : "memory");
  } else if constexpr (count == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(p)
                 : "memory");
  } else if constexpr (count == 2 && !transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(p)
                 : "memory");
  } else if constexpr (count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(p)
                 : "memory");
  } else if constexpr (!transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p)
                 : "memory");
  }
#else
  uint4 bits{};
  const unsigned lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
  const std::uintptr_t from = (reinterpret_cast<std::uintptr_t>(row) ^ flipped) + offset;
  if (lane < 8 * count) bits = *reinterpret_cast<const uint4*>(from);
  emulator::ldmatrix(r, count, transposed, &bits.x, at);
#endif
}

/// Copies bytes (4, 8, 16) from device to shared memory in the background; both addresses are
/// aligned to that. Where `valid` is false nothing is read and zeros are written.
template <int bytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid = true) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
#ifdef __CUDACC__
  const unsigned p = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int from = valid ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(p),
                 "l"(__cvta_generic_to_global(global)), "r"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(p),
                 "l"(__cvta_generic_to_global(global)), "n"(bytes), "r"(from)
                 : "memory");
  }
#else
  emulator::copy_async(shared, global, bytes, valid ? 0 : bytes);
#endif
}

/// 2^x to 2 units in the last place of f32, in one instruction; numbers below 2^-126 become 0.
__device__ __forceinline__ float exp2_flushed(float x) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : emulator::off_by(2, x, result);
#endif
}

/// 1 / x to a unit in the last place of f32, in one instruction; numbers below 2^-126 count as 0.
__device__ __forceinline__ float reciprocal(float x) {
#ifdef __CUDACC__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  const float result = 1.0f / (std::abs(x) < 0x1p-126f ? 0.0f * x : x);
  return std::abs(result) < 0x1p-126f ? 0.0f * result : emulator::off_by(1, x, result);
#endif
}

/// A word that other blocks change by atomics: what one of them did before a fence and that change
/// is visible from here on.
__device__ __forceinline__ unsigned load_acquire(unsigned* word) {
#ifdef __CUDACC__
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(word))
               : "memory");
  return value;
#else
  return atomicAdd(word, 0u);
#endif
}

/// Makes 16 bytes look new to the compiler, which then computes again what it would otherwise keep
/// in registers, such as the eight f32 of eight bf16. No instruction.
__device__ __forceinline__ void look_new(uint4& bits) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(bits.x), "+r"(bits.y), "+r"(bits.z), "+r"(bits.w));
#else
  (void)bits;
#endif
}

/// Ends a group of copies of this thread.
__device__ __forceinline__ void copy_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::copy_commit();
#endif
}

/// Waits until at most groups_left groups of this thread are in flight. A barrier then shows the
/// copied data to the others.
template <int groups_left>
__device__ __forceinline__ void copy_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
#else
  emulator::copy_wait(groups_left);
#endif
}

}  // namespace quipu::ptx

#undef QUIPU_PTX_SITE
