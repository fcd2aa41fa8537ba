// The sums that compute in i64; reduce_sum.cuh tells how.
#include "reduce_sum.cuh"

namespace quipu::on_cuda {

template <>
SumKernel<std::int64_t> sum_kernel_for<std::int64_t>(Pointwise f) {
  return kernel_of<std::int64_t, MakeSum<std::int64_t>>(f);
}

}  // namespace quipu::on_cuda
