// The pointwise kernels that compute in f64; pointwise_map.cuh tells how.
#include "pointwise_map.cuh"

namespace quipu::on_cuda {

template MapKernel<double> map_kernel_for<double>(Pointwise);
template VectorKernel<double> vector_kernel_for<double, double>(Pointwise);

}  // namespace quipu::on_cuda
