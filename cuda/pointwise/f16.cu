// The pointwise kernels of f16 operands, 128 bits at a time; map.cuh explains them.
//
// sin and cos of large numbers, and their gradients, keep an array in local memory.
//
// sass map_vectors<.*{Pointwise:!sin,cos,sin_grad,cos_grad}: need LDG.E.128 STG.E.128; forbid LD.E
// ST.E;
//   registers 80; shared 0
// sass map_vectors<.*{Pointwise:sin,cos,sin_grad,cos_grad}: need LDG.E.128 STG.E.128; forbid LD.E
// ST.E;
//   registers 48; shared 0; local 40
#include "map.cuh"

namespace quipu::detail::on_cuda {

template VectorKernel<float> vector_kernel_for<__half, float>(Pointwise);

}  // namespace quipu::detail::on_cuda
