#pragma once
// Pairs of bf16 or f16 as they lie in a word, which is how tensor cores take them, and f32 numbers
// split into 16 bits (hi) and residual (lo).
#include <bit>

#include "element.cuh"
#include "quipu/cuda/ptx.h"

namespace quipu::detail::on_cuda {

template <class E>
struct Pair {
  E first, second;
};

template <class E>
__device__ __forceinline__ float2 unpacked(unsigned word) {
  const auto pair = std::bit_cast<Pair<E>>(word);
  return make_float2(converted<float>(pair.first), converted<float>(pair.second));
}
template <class E>
__device__ __forceinline__ unsigned packed(float first, float second) {
  if constexpr (std::is_same_v<E, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return std::bit_cast<unsigned>(Pair<E>{pair.x, pair.y});
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return std::bit_cast<unsigned>(Pair<E>{pair.x, pair.y});
  }
}

/// Two numbers rounded to E (hi), and `scale` times their residuals (lo). The residual of an f16
/// may underflow: then a scale above 1 keeps its bits.
template <class E>
struct SplitPair {
  __device__ __forceinline__ SplitPair(float first, float second, float scale = 1.0f)
      : hi(packed<E>(first, second)) {
    const float2 near = unpacked<E>(hi);
    // The residual of infinity is 0, not NaN.
    lo = packed<E>(first == near.x ? 0.0f : scale * (first - near.x),
                   second == near.y ? 0.0f : scale * (second - near.y));
  }
  unsigned hi, lo;
};

template <class E>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (std::is_same_v<E, __half>) {
    ptx::mma_f16(d, a, b);
  } else {
    ptx::mma_bf16(d, a, b);
  }
}

}  // namespace quipu::detail::on_cuda
