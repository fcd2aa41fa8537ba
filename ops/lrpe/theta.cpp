#include "quipu/ops/lrpe/theta_support.h"

#include "quipu/core/tensor.h"
#include "quipu/ops/act_kernels.h"
#include "quipu/ops/view_support.h"

namespace quipu::detail {
namespace {

/// Softmax of x over the features or the tokens, as workspace.
Tensor softmax_of(const View& x, bool over_sequence) {
  const int axis = over_sequence ? 2 : 3;
  const DType dtype = compute_type(x.dtype);
  const std::int64_t length = x.size(axis), lines = length > 0 ? x.numel() / length : 0;
  const Shape shape = softmax_workspace(x.device.kind(), lines, length, 2);
  const Tensor y = workspace(x.shape, dtype, x.device);
  const Tensor parts = numel(shape) > 0 ? workspace(shape, dtype, x.device) : Tensor();
  softmax_forward_kernel(x, y, optional_view(parts), axis);
  return y;
}

}  // namespace

void differentiate_theta(View x, const View& d_o, const Grad& d_theta, const View& angles,
                         RowTransform transform) {
  Tensor y;
  if (transform.act == Act::softmax) {
    y = softmax_of(x, transform.over_sequence);
    x = y;
    transform.act = Act::none;
    transform.over_sequence = false;
  }
  const std::int64_t numbers = lrpe_theta_workspace(x.device.kind(), transform.kind, x.shape);
  const Tensor sums = workspace({numbers}, f64, x.device);
  lrpe_theta_kernel(x, d_o, d_theta, angles, transform, sums);
}

}  // namespace quipu::detail
