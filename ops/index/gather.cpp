#include "quipu/ops/index/gather.h"

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/index/support.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/view_support.h"

namespace quipu {
using namespace detail;
namespace {

struct GatherRule {
  Saved index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!g.add) fill_kernel(g.view, 0);
      scatter_add_kernel(g.view, index, d_o, axis);
    });
  }
};

struct IndexSelectRule {
  Saved index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!g.add) fill_kernel(g.view, 0);
      add_at_index(g.view, index, d_o, axis);
    });
  }
};

struct ScatterAddRule {
  Saved index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(1, [&](const Grad& g) { gather_kernel(d_o, index, g, axis); });
    d.pass(0, d_o);
  }
};

}  // namespace

void detail::check_index_shape(const Tensor& x, int axis, const Tensor& index) {
  check(index.dim() == x.dim(), "index has shape ", index.shape(), ", but x has shape ", x.shape(),
        " (both must have the same number of dimensions)");
  for (int d = 0; d < x.dim(); ++d) {
    check(d == axis || index.size(d) <= x.size(d), "index has shape ", index.shape(),
          ", but x has shape ", x.shape(), " (index must not be larger in dimension ", d, ")");
  }
}

int detail::check_scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  check_index("index", index);
  check_same_device("x", x, "index", index);
  check_same_device("x", x, "source", source);
  check_same_dtype("x", x, "source", source);
  const int axis = wrap_dim(dim, x.dim());
  check_index_shape(x, axis, index);
  check(source.shape() == index.shape(), "source has shape ", source.shape(),
        ", but index has shape ", index.shape());
  return axis;
}

void detail::add_at_index(const View& o, const View& index, const View& x, int axis) {
  const std::int64_t bytes = index_add_workspace(o.device.kind(), o, x, axis);
  const Tensor space = bytes > 0 ? workspace({bytes}, u8, o.device) : Tensor();
  index_add_kernel(o, index, x, axis, optional_view(space));
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  const OpScope op("gather");
  check_index("index", index);
  check_same_device("x", x, "index", index);
  const int axis = wrap_dim(dim, x.dim());
  check_index_shape(x, axis, index);
  const Tensor o = empty(index.shape(), x.dtype(), x.device());
  gather_kernel(x, index, Target::write_to(o), axis);
  return tie(o, {x}, GatherRule{save_if(x.requires_grad(), index), axis});
}

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  const OpScope op("index_select");
  check_index("index", index);
  check_same_device("x", x, "index", index);
  const int axis = wrap_dim(dim, x.dim());
  check(index.dim() == 1, "index has shape ", index.shape(),
        ", but must have one dimension; flatten() it first");
  Shape shape = x.shape();
  shape[axis] = index.numel();
  const Tensor o = empty(shape, x.dtype(), x.device());
  index_select_kernel(x, index, o, axis);
  return tie(o, {x}, IndexSelectRule{save_if(x.requires_grad(), index), axis});
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  const OpScope op("scatter_add");
  check(x.dtype() != boolean, "x is bool, which cannot be added to; convert it with .to(i64)");
  const int axis = check_scatter(x, dim, index, source);
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  copy_kernel(o, x);
  scatter_add_kernel(o, index, source, axis);
  return tie(o, {x, source}, ScatterAddRule{save_if(source.requires_grad(), index), axis});
}

}  // namespace quipu
