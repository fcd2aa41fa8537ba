// The sums that compute in f64; reduce_sum.cuh tells how.
#include "reduce_sum.cuh"

namespace quipu::on_cuda {

template <>
SumKernel<double> sum_kernel_for<double>(Pointwise f) {
  return kernel_of<double, MakeSum<double>>(f);
}

}  // namespace quipu::on_cuda
