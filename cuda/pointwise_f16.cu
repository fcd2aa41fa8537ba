// The pointwise kernels of f16 operands, 128 bits at a time; pointwise_map.cuh tells how.
//
// sin and cos of large numbers, and their gradients, keep an array on the stack.
//
// sass map_vectors<.*Pointwise\)(?!7>|8>|44>|45>): need LDG.E.128 STG.E.128; forbid LD.E ST.E;
//   registers 48; shared 0
// sass map_vectors<.*Pointwise\)(7|8|44|45)>: need LDG.E.128 STG.E.128; forbid LD.E ST.E;
//   registers 48; shared 0; local 40
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template VectorKernel<float> vector_kernel_for<__half, float>(Pointwise);

}  // namespace quipu::on_cuda
