// The sums that compute in f32; reduce_sum.cuh tells how.
#include "reduce_sum.cuh"

namespace quipu::on_cuda {

template <>
SumKernel<float> sum_kernel_for<float>(Pointwise f) {
  return kernel_of<float, MakeSum<float>>(f);
}

}  // namespace quipu::on_cuda
