// The pointwise kernels that compute in f32; map.cuh explains them.
//
// sin and cos of large numbers, and their gradients, keep an array in local memory.
//
// sass map_vectors<.*{Pointwise:!sin,cos,sin_grad,cos_grad,tan}: need LDG.E.128 STG.E.128; forbid
// LD.E ST.E;
//   registers 56; shared 0
// sass map_elements<.*{Pointwise:!sin,cos,sin_grad,cos_grad,tan}: forbid LD.E ST.E; registers 40;
// shared 0 sass map_(vectors|elements)<.*{Pointwise:sin,cos,sin_grad,cos_grad,tan}: forbid LD.E
// ST.E; registers 48; shared 0;
//   local 40
#include "map.cuh"

namespace quipu::detail::on_cuda {

template MapKernel<float> map_kernel_for<float>(Pointwise);
template VectorKernel<float> vector_kernel_for<float, float>(Pointwise);

}  // namespace quipu::detail::on_cuda
