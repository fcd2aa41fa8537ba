// A kernel that keeps none of its promises; sass_check must say so.
//
// sass strided_copy_kernel: need LDG.E.128; forbid STG.E; registers 2
// sass no_such_kernel: need LDG.E
// sass strided_copy_kernel<{Pointwise:sin,no_such_function}: need LDG.E
#include "quipu/cuda/launch.h"

namespace quipu::testing {

__global__ void strided_copy_kernel(const float* from, float* to, int stride) {
  to[threadIdx.x] = from[static_cast<int>(threadIdx.x) * stride];
}

}  // namespace quipu::testing
