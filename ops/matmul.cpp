// What the kernel wants is arranged here: equal numbers of dimensions, matrices with one unit
// stride, and few large products instead of many small ones. A batch of rows times one matrix is
// folded into one product, in backward too, where the gradient of the matrix is then a single
// product as well.
#include "quipu/ops/matmul.h"

#include <algorithm>
#include <utility>

#include "quipu/autograd/knot.h"
#include "quipu/core/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/matmul_kernels.h"
#include "quipu/ops/pointwise_support.h"

namespace quipu {
namespace {

View transposed(View v) {
  std::swap(v.shape[v.dim() - 1], v.shape[v.dim() - 2]);
  std::swap(v.strides[v.dim() - 1], v.strides[v.dim() - 2]);
  return v;
}

View with_dims(View v, int dims) {
  while (v.dim() < dims) {
    v.shape.insert(0, 1);
    v.strides.insert(0, 0);
  }
  return v;
}

/// A matrix that lies row by row, each row without gaps.
bool has_dense_rows(const View& v) {
  const int rows = v.dim() - 2, columns = v.dim() - 1;
  return (v.stride(columns) == 1 || v.size(columns) <= 1) &&
         (v.stride(rows) >= std::max<std::int64_t>(v.size(columns), 1) || v.size(rows) <= 1);
}

bool can_multiply(const View& v) {
  return has_dense_rows(v) || has_dense_rows(transposed(v));
}

/// An operand as it is, or a dense copy where the kernel could not read it. Repeated matrices are
/// copied once.
struct Packed {
  explicit Packed(const View& v) : view(v) {
    if (can_multiply(v)) return;
    View once = v;
    for (int d = 0; d + 2 < v.dim(); ++d) {
      if (v.stride(d) == 0) once.shape[d] = std::min<std::int64_t>(v.size(d), 1);
    }
    buffer = workspace(once.shape, v.dtype, v.device);
    copy_kernel(buffer, once);
    view.data = buffer.view().data;
    view.strides = broadcast_strides(once.shape, buffer.strides(), v.shape);
  }
  Tensor buffer;
  View view;
};

/// All dimensions but the last as one; false where strides do not allow it.
bool fold(View& v) {
  std::int64_t rows = 1, stride = 0;
  for (int d = v.dim() - 2; d >= 0; --d) {
    if (v.size(d) == 1) continue;
    if (rows == 1) {
      stride = v.stride(d);
    } else if (v.stride(d) != stride * rows) {
      return false;
    }
    rows *= v.size(d);
  }
  v.strides = {stride, v.stride(v.dim() - 1)};
  v.shape = {rows, v.size(v.dim() - 1)};
  return true;
}

/// Folds the batches of `a` and `b` into their rows where both allow it and the other matrix of the
/// product has none.
void fold_both(View& a, View& b, const View& matrix) {
  View x = a, y = b;
  if (matrix.dim() == 2 && a.dim() == b.dim() && fold(x) && fold(y)) {
    a = x;
    b = y;
  }
}

/// o (=|+=) a b
void multiply(const View& a, const View& b, const Grad& o) {
  const int dims = std::max({a.dim(), b.dim(), o.view.dim()});
  const Packed x(with_dims(a, dims)), y(with_dims(b, dims));
  const View out = with_dims(o.view, dims);
  if (can_multiply(out)) return matmul_kernel(x.view, y.view, {out, o.add});
  const Tensor buffer = workspace(out.shape, compute_type(out.dtype), out.device);
  matmul_kernel(x.view, y.view, Grad::write_to(buffer));
  add_into_kernel({out, o.add}, buffer);
}

struct MatmulRule {
  Saved a, b;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      View rows = d_o, d_a = g.view;
      fold_both(rows, d_a, b.get());
      multiply(rows, transposed(b.get()), {d_a, g.add});
    });
    d.with(1, [&](const Grad& g) {
      View left = a.get(), right = d_o;
      fold_both(left, right, g.view);
      multiply(transposed(left), right, g);
    });
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  const OpScope op("matmul");
  check(a.dim() > 0 && b.dim() > 0, "a has shape ", a.shape(), " and b has shape ", b.shape(),
        ", but both need at least one dimension");
  check_same_device("a", a, "b", b);
  check_same_dtype("a", a, "b", b);
  check_floating("a", a.dtype());
  const std::int64_t inner = b.size(b.dim() == 1 ? 0 : -2);
  check(a.size(-1) == inner, "b has shape ", b.shape(), ", but a has shape ", a.shape(), " (",
        a.size(-1), " columns of a meet ", inner, " rows of b)");
  if (a.dim() == 1) return matmul(a.unsqueeze(0), b).squeeze(b.dim() == 1 ? 0 : -2);
  if (b.dim() == 1) return matmul(a, b.unsqueeze(1)).squeeze(-1);

  const auto batch_of = [](Shape shape) {
    shape.erase(shape.size() - 1);
    shape.erase(shape.size() - 1);
    return shape;
  };
  Shape shape = broadcast_shapes(batch_of(a.shape()), batch_of(b.shape()));
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  const Tensor o = empty(shape, a.dtype(), a.device());
  View rows = a, out = o;
  fold_both(rows, out, b);
  multiply(rows, b, Grad::write_to(out));
  return tie(o, {a, b}, MatmulRule{save_if(b.requires_grad(), a), save_if(a.requires_grad(), b)});
}

}  // namespace quipu
