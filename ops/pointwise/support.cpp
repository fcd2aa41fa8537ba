#include "quipu/ops/pointwise/support.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"

namespace quipu::detail {

PointwiseResult match_terms(const Term& a, const Term& b) {
  const Tensor& x = a.tensor();
  const Tensor& y = b.tensor();
  if (a.is_tensor() && b.is_tensor()) {
    check_same_device("a", x, "b", y);
    return {broadcast_shapes(x.shape(), y.shape()), promote(x.dtype(), y.dtype()), x.device()};
  }
  check(a.is_tensor() || b.is_tensor(),
        "neither a nor b is a tensor; make one with scalar_tensor()");
  const Tensor& tensor = a.is_tensor() ? x : y;
  check_scalar(a.is_tensor() ? b.scalar() : a.scalar(), tensor.dtype());
  return {tensor.shape(), tensor.dtype(), tensor.device()};
}

Tensor map(Pointwise f, const Operands& in, const PointwiseResult& result) {
  Tensor o = empty(result.shape, result.dtype, result.device);
  pointwise_kernel(Target::write_to(o), f, in);
  return o;
}

void map_into(const Grad& g, Pointwise f, const Operands& in, const Shape& over) {
  if (g.view.shape == over) {
    pointwise_kernel(g, f, in);
  } else {
    if (traits_of(f).summed) return pointwise_sum_kernel(g, f, in, over, 1.0);
    const Tensor whole = workspace(over, compute_type(g.view.dtype), g.view.device);
    pointwise_kernel(Target::write_to(whole), f, in);
    pointwise_sum_kernel(g, Pointwise::copy, {whole}, over, 1.0);
  }
}

Tensor dense(const Tensor& x) {
  if (x.is_contiguous()) return x;
  const Tensor copy = workspace(x.shape(), x.dtype(), x.device());
  copy_kernel(copy, x);
  return copy;
}

}  // namespace quipu::detail
