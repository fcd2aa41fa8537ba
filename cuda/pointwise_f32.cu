// The pointwise kernels that compute in f32; pointwise_map.cuh tells how.
//
// sin and cos of large numbers, and their gradients, keep an array on the stack.
//
// sass map_vectors<.*Pointwise\)(?!7>|8>|44>|45>): need LDG.E.128 STG.E.128; forbid LD.E ST.E;
//   registers 48; shared 0
// sass map_elements<.*Pointwise\)(?!7>|8>|44>|45>): forbid LD.E ST.E; registers 40; shared 0
// sass map_(vectors|elements)<.*Pointwise\)(7|8|44|45)>: forbid LD.E ST.E; registers 48; shared 0;
//   local 40
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template MapKernel<float> map_kernel_for<float>(Pointwise);
template VectorKernel<float> vector_kernel_for<float, float>(Pointwise);

}  // namespace quipu::on_cuda
