// The pointwise kernels of f16 operands, 128 bits at a time; pointwise_map.cuh tells how.
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template VectorKernel<float> vector_kernel_for<__half, float>(Pointwise);

}  // namespace quipu::on_cuda
