// The pointwise kernels that compute in f32; pointwise_map.cuh tells how.
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template MapKernel<float> map_kernel_for<float>(Pointwise);
template VectorKernel<float> vector_kernel_for<float, float>(Pointwise);

}  // namespace quipu::on_cuda
