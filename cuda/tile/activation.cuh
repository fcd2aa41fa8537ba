#pragma once
// Activations of a few numbers in registers, inside kernels that do more. The activation is an
// argument: all threads have the same one, so the branch is uniform.
#include "functions.cuh"
#include "quipu/ops/act.h"

namespace quipu::detail::on_cuda {

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

/// Replaces numbers by their activation; softmax, which needs more than these, leaves them
/// unchanged.
template <class T, int n>
__device__ __forceinline__ void activate(Act act, T (&x)[n]) {
  switch (act) {
    case Act::relu: return apply_each<Pointwise::relu>(x);
    case Act::sigmoid: return apply_each<Pointwise::sigmoid>(x);
    case Act::silu: return apply_each<Pointwise::silu>(x);
    default: return;
  }
}

/// d_x from d_y and x, in place of d_y.
template <class T, int n>
__device__ __forceinline__ void activation_gradient(Act act, const T (&x)[n], T (&d)[n]) {
  switch (act) {
    case Act::relu: return apply_each<Pointwise::relu_grad>(x, d);
    case Act::sigmoid: return apply_each<Pointwise::sigmoid_grad>(x, d);
    case Act::silu: return apply_each<Pointwise::silu_grad>(x, d);
    default: return;
  }
}

}  // namespace quipu::detail::on_cuda
