#pragma once
// CUDA's words, built-in variables and vector types for a host compiler.
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
// One block at a time runs on an OS thread; at block scope thread_local implies static.
#define __shared__ thread_local
#define __constant__ static const
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define QUIPU_VECTORS(Type, name, two, four)                      \
  struct name##1 {                                                \
    Type x;                                                       \
  };                                                              \
  struct alignas(two) name##2 {                                   \
    Type x, y;                                                    \
  };                                                              \
  struct name##3 {                                                \
    Type x, y, z;                                                 \
  };                                                              \
  struct alignas(four) name##4 {                                  \
    Type x, y, z, w;                                              \
  };                                                              \
  inline name##1 make_##name##1(Type x) {                         \
    return {x};                                                   \
  }                                                               \
  inline name##2 make_##name##2(Type x, Type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##3 make_##name##3(Type x, Type y, Type z) {         \
    return {x, y, z};                                             \
  }                                                               \
  inline name##4 make_##name##4(Type x, Type y, Type z, Type w) { \
    return {x, y, z, w};                                          \
  }
QUIPU_VECTORS(signed char, char, 2, 4)
QUIPU_VECTORS(unsigned char, uchar, 2, 4)
QUIPU_VECTORS(short, short, 4, 8)
QUIPU_VECTORS(unsigned short, ushort, 4, 8)
QUIPU_VECTORS(int, int, 8, 16)
QUIPU_VECTORS(unsigned, uint, 8, 16)
QUIPU_VECTORS(long, long, 16, 16)
QUIPU_VECTORS(unsigned long, ulong, 16, 16)
QUIPU_VECTORS(long long, longlong, 16, 16)
QUIPU_VECTORS(unsigned long long, ulonglong, 16, 16)
QUIPU_VECTORS(float, float, 8, 16)
QUIPU_VECTORS(double, double, 16, 16)
#undef QUIPU_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

// const for kernels, so that they can neither be written nor need to be watched; the scheduler,
// which owns them, sets them through the same symbols. (dim3 has constructors: the compiler would
// not take such a constant for one.)
extern __thread const uint3 threadIdx __asm__("quipu_thread_index");
extern __thread const uint3 blockIdx __asm__("quipu_block_index");
extern __thread const uint3 blockDim __asm__("quipu_block_size");
extern __thread const uint3 gridDim __asm__("quipu_grid_size");
inline constexpr int warpSize = 32;
