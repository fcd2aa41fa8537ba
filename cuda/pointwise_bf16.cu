// The pointwise kernels of bf16 operands, 128 bits at a time; pointwise_map.cuh tells how.
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template VectorKernel<float> vector_kernel_for<__nv_bfloat16, float>(Pointwise);

}  // namespace quipu::on_cuda
