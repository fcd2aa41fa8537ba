// The pointwise kernels that compute in i64; map.cuh explains them.
//
// sass map_vectors: need LDG.E.128 STG.E.128; forbid LD.E ST.E; registers 40; shared 0
// sass map_elements: forbid LD.E ST.E; registers 40; shared 0
#include "map.cuh"

namespace quipu::detail::on_cuda {

template MapKernel<std::int64_t> map_kernel_for<std::int64_t>(Pointwise);
template VectorKernel<std::int64_t> vector_kernel_for<std::int64_t, std::int64_t>(Pointwise);

}  // namespace quipu::detail::on_cuda
