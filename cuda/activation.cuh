#pragma once
// Activations of a few numbers in registers, inside kernels that do more. All threads have the same
// one, so it is chosen while the kernel runs.
#include "functions.cuh"
#include "quipu/ops/act.h"

namespace quipu::on_cuda {

/// x = F of x
template <Pointwise F, class T, int n>
__device__ __forceinline__ void apply_each(T (&x)[n]) {
#pragma unroll
  for (int j = 0; j < n; ++j) x[j] = apply<F>(x[j], T(0), T(0));
}
/// d = F of d and x
template <Pointwise F, class T, int n>
__device__ __forceinline__ void apply_each(const T (&x)[n], T (&d)[n]) {
#pragma unroll
  for (int j = 0; j < n; ++j) d[j] = apply<F>(d[j], x[j], T(0));
}

/// Replaces numbers by their activation; softmax, which takes more than these, leaves them.
template <class T, int n>
__device__ __forceinline__ void activate(Act act, T (&x)[n]) {
  switch (act) {
    case Act::relu: return apply_each<Pointwise::relu>(x);
    case Act::sigmoid: return apply_each<Pointwise::sigmoid>(x);
    case Act::silu: return apply_each<Pointwise::silu>(x);
    default: return;
  }
}

/// Makes the gradient of activated numbers one of the numbers x.
template <class T, int n>
__device__ __forceinline__ void activate_back(Act act, const T (&x)[n], T (&d)[n]) {
  switch (act) {
    case Act::relu: return apply_each<Pointwise::relu_grad>(x, d);
    case Act::sigmoid: return apply_each<Pointwise::sigmoid_grad>(x, d);
    case Act::silu: return apply_each<Pointwise::silu_grad>(x, d);
    default: return;
  }
}

}  // namespace quipu::on_cuda
