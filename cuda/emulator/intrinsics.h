#pragma once
// Barriers, warp collectives, atomics and cache hints under CUDA's names.
#include "device.h"
#include "language.h"

#define QUIPU_SITE quipu::emulator::Site at = quipu::emulator::Site::current()

inline void __syncthreads(QUIPU_SITE) {
  quipu::emulator::barrier(false, at);
}
inline int __syncthreads_count(int predicate, QUIPU_SITE) {
  return quipu::emulator::barrier(predicate != 0, at);
}
inline int __syncthreads_or(int predicate, QUIPU_SITE) {
  return quipu::emulator::barrier(predicate != 0, at) != 0;
}
inline int __syncthreads_and(int predicate, QUIPU_SITE) {
  return quipu::emulator::barrier(predicate == 0, at) == 0;
}

inline void __syncwarp(unsigned mask = ~0u, QUIPU_SITE) {
  quipu::emulator::collective(quipu::emulator::Collective::sync, mask, 0, 0, 32, at);
}
inline unsigned __activemask() {
  return quipu::emulator::active_lanes();
}
inline unsigned __ballot_sync(unsigned mask, int predicate, QUIPU_SITE) {
  return static_cast<unsigned>(quipu::emulator::collective(quipu::emulator::Collective::ballot,
                                                           mask, predicate != 0, 0, 32, at));
}
inline int __any_sync(unsigned mask, int predicate, QUIPU_SITE) {
  return __ballot_sync(mask, predicate, at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, QUIPU_SITE) {
  return __ballot_sync(mask, !predicate, at) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, QUIPU_SITE) {
  return static_cast<unsigned>(quipu::emulator::collective(
      quipu::emulator::Collective::match_any, mask, quipu::emulator::to_bits(value), 0, 32, at));
}
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all, QUIPU_SITE) {
  const auto same = static_cast<unsigned>(quipu::emulator::collective(
      quipu::emulator::Collective::match_all, mask, quipu::emulator::to_bits(value), 0, 32, at));
  *all = same != 0;
  return same;
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, QUIPU_SITE) {
  return quipu::emulator::shuffle(quipu::emulator::Collective::shuffle, mask, value,
                                  static_cast<unsigned>(lane), width, at);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, QUIPU_SITE) {
  return quipu::emulator::shuffle(quipu::emulator::Collective::shuffle_up, mask, value, distance,
                                  width, at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, QUIPU_SITE) {
  return quipu::emulator::shuffle(quipu::emulator::Collective::shuffle_down, mask, value, distance,
                                  width, at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, QUIPU_SITE) {
  return quipu::emulator::shuffle(quipu::emulator::Collective::shuffle_xor, mask, value,
                                  static_cast<unsigned>(lanes), width, at);
}

#define QUIPU_REDUCE(name, Type, what)                                                      \
  inline Type __reduce_##name##_sync(unsigned mask, Type value, QUIPU_SITE) {               \
    return static_cast<Type>(quipu::emulator::collective(                                   \
        quipu::emulator::Collective::what, mask, static_cast<unsigned>(value), 0, 32, at)); \
  }
QUIPU_REDUCE(add, unsigned, add)
QUIPU_REDUCE(add, int, add)
QUIPU_REDUCE(min, unsigned, min_unsigned)
QUIPU_REDUCE(min, int, min_signed)
QUIPU_REDUCE(max, unsigned, max_unsigned)
QUIPU_REDUCE(max, int, max_signed)
QUIPU_REDUCE(and, unsigned, bit_and)
QUIPU_REDUCE(or, unsigned, bit_or)
QUIPU_REDUCE(xor, unsigned, bit_xor)
#undef QUIPU_REDUCE

#define QUIPU_ATOMIC(name, Type, update)                                                    \
  __forceinline__ Type name(Type* address, Type value) {                                    \
    return quipu::emulator::atomic_update(address, value, quipu::emulator::Update::update); \
  }
#define QUIPU_INTEGER_ATOMIC(name, update) \
  QUIPU_ATOMIC(name, int, update)          \
  QUIPU_ATOMIC(name, unsigned, update)     \
  QUIPU_ATOMIC(name, unsigned long long, update)
QUIPU_INTEGER_ATOMIC(atomicAdd, add)
QUIPU_ATOMIC(atomicAdd, float, add)
QUIPU_ATOMIC(atomicAdd, double, add)
QUIPU_ATOMIC(atomicSub, int, sub)
QUIPU_ATOMIC(atomicSub, unsigned, sub)
QUIPU_INTEGER_ATOMIC(atomicExch, exchange)
QUIPU_ATOMIC(atomicExch, float, exchange)
QUIPU_INTEGER_ATOMIC(atomicMin, min)
QUIPU_INTEGER_ATOMIC(atomicMax, max)
QUIPU_INTEGER_ATOMIC(atomicAnd, bit_and)
QUIPU_INTEGER_ATOMIC(atomicOr, bit_or)
QUIPU_INTEGER_ATOMIC(atomicXor, bit_xor)
QUIPU_ATOMIC(atomicInc, unsigned, inc)
QUIPU_ATOMIC(atomicDec, unsigned, dec)
#undef QUIPU_INTEGER_ATOMIC
#undef QUIPU_ATOMIC
template <class T>
__forceinline__ T atomicCAS(T* address, T expected, T value) {
  return quipu::emulator::atomic_compare_exchange(address, expected, value);
}

inline void __threadfence() {
  quipu::emulator::fence();
}
inline void __threadfence_system() {
  quipu::emulator::fence();
}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap(QUIPU_SITE) {
  quipu::emulator::trap(at);
}
inline void __nanosleep(unsigned) {}

#define QUIPU_LOAD(name)               \
  template <class T>                   \
  __forceinline__ T name(const T* p) { \
    return *p;                         \
  }
QUIPU_LOAD(__ldg)
QUIPU_LOAD(__ldca)
QUIPU_LOAD(__ldcg)
QUIPU_LOAD(__ldcs)
QUIPU_LOAD(__ldlu)
QUIPU_LOAD(__ldcv)
#undef QUIPU_LOAD
#define QUIPU_STORE(name)                    \
  template <class T>                         \
  __forceinline__ void name(T* p, T value) { \
    *p = value;                              \
  }
QUIPU_STORE(__stwb)
QUIPU_STORE(__stcg)
QUIPU_STORE(__stcs)
QUIPU_STORE(__stwt)
#undef QUIPU_STORE
