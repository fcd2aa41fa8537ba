#include "quipu/ops/index/top_k.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/index/top_k_kernels.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

void spread_gradient(const Tensor& indices, const Tensor& d_values, const Grad& g, int axis) {
  if (!g.add) fill_kernel(g.view, 0.0);
  scatter_add_kernel(g.view, indices, d_values, axis);
}

struct TopKRule {
  Saved indices;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { spread_gradient(indices, d_o, g, axis); });
  }
};

}  // namespace

TopK top_k(const Tensor& x, std::int64_t k, int dim, bool largest) {
  const OpScope op("top_k");
  if (x.dim() == 0) {
    const TopK one = top_k(x.reshape({1}), k, dim, largest);
    return k == 1 ? TopK{one.values.reshape({}), one.indices.reshape({})} : one;
  }
  const int axis = wrap_dim(dim, x.dim());
  const std::int64_t length = x.size(axis);
  check(k >= 0 && k <= length, "k is ", k, ", but x has shape ", x.shape(), " and so ", length,
        " entries in dimension ", axis);
  Shape shape = x.shape();
  shape[axis] = k;
  const Tensor values = empty(shape, x.dtype(), x.device());
  const Tensor indices = empty(shape, i64, x.device());
  if (values.numel() > 0) {
    const Shape room = top_k_room(values.numel() / k, length, k);
    top_k_kernel(x, values, indices, workspace(room, i64, x.device()), axis, largest);
  }
  return {tie(values, {x}, TopKRule{save_if(x.requires_grad(), indices), axis}), indices};
}

void detail::top_k_backward(const Tensor& indices, const Tensor& d_values, const Grad& d_x,
                            int dim) {
  const OpScope op("top_k_backward");
  check_index("indices", indices);
  check_same_device("indices", indices, "d_values", d_values);
  check_floating("d_values", d_values.dtype());
  check(d_values.shape() == indices.shape(), "d_values has shape ", d_values.shape(),
        ", but indices has shape ", indices.shape());
  const int axis = wrap_dim(dim, indices.dim());
  Shape wanted = indices.shape();
  if (d_x.view.dim() == wanted.size()) wanted[axis] = d_x.view.size(axis);
  check(d_x.view.shape == wanted, "d_x has shape ", d_x.view.shape, ", but indices has shape ",
        indices.shape(), " (they may differ in dimension ", axis, " only)");
  spread_gradient(indices, d_values, d_x, axis);
}

}  // namespace quipu
