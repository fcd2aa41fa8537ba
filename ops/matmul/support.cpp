#include "quipu/ops/matmul/support.h"

#include <algorithm>
#include <utility>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/matmul/kernels.h"

namespace quipu::detail {

View transposed(View v) {
  std::swap(v.shape[v.dim() - 1], v.shape[v.dim() - 2]);
  std::swap(v.strides[v.dim() - 1], v.strides[v.dim() - 2]);
  return v;
}

namespace {

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

}  // namespace

void fold_both(View& a, View& b, const View& matrix) {
  View x = a, y = b;
  if (matrix.dim() == 2 && a.dim() == b.dim() && fold(x) && fold(y)) {
    a = x;
    b = y;
  }
}

namespace {

/// Some of the positions that a product sums over, from `first` on: `parts` times `length` of them,
/// the parts along a new first dimension.
View summed_part(View v, int dim, std::int64_t first, std::int64_t parts, std::int64_t length) {
  const std::int64_t stride = v.stride(dim);
  v.data =
      static_cast<char*>(v.data) + first * stride * static_cast<std::int64_t>(size_of(v.dtype));
  v.shape[dim] = length;
  v.shape.insert(0, parts);
  v.strides.insert(0, length * stride);
  return v;
}

/// o (=|+=) a b, where long sums are cut into parts that are added in their order.
void multiply_parts(const View& a, const View& b, const Target& o, std::int64_t parts) {
  const int rows = a.dim() - 2, columns = rows + 1;
  const std::int64_t length = a.size(columns) / parts, rest = a.size(columns) % parts;
  Shape shape = o.view.shape;
  shape.insert(0, parts);
  const Tensor sums = workspace(shape, compute_type(a.dtype), a.device);
  const auto add_part = [&](std::int64_t first, std::int64_t count, std::int64_t of,
                            const Target& to) {
    matmul_kernel(summed_part(a, columns, first, count, of), summed_part(b, rows, first, count, of),
                  to, View());
  };
  add_part(0, parts, length, Target::write_to(sums));
  if (rest > 0) add_part(parts * length, 1, rest, {sums.slice(0, 0, 1), true});
  View whole = o.view;
  whole.shape.insert(0, 1);
  whole.strides.insert(0, 0);
  add_into_kernel({whole, o.add}, sums);
}

}  // namespace

void multiply(const View& a, const View& b, const Target& o) {
  const int dims = std::max({a.dim(), b.dim(), o.view.dim()});
  const Packed x(with_dims(a, dims)), y(with_dims(b, dims));
  const View out = with_dims(o.view, dims);
  const DeviceKind kind = out.device.kind();
  const std::int64_t m = out.size(dims - 2), n = out.size(dims - 1);
  const std::int64_t products = out.numel() / std::max<std::int64_t>(m * n, 1);
  const std::int64_t parts = matmul_parts(kind, products, m, n, x.view.size(dims - 1));
  if (parts > 1 && out.numel() > 0 && dims < max_dims)
    return multiply_parts(x.view, y.view, {out, o.add}, parts);
  const std::int64_t bytes = matmul_workspace(kind, m, n);
  const Tensor scratch = bytes > 0 ? workspace({bytes}, u8, out.device) : Tensor();
  const View space = bytes > 0 ? scratch.view() : View();
  if (can_multiply(out) && matmul_reaches(kind, x.view, y.view, out)) {
    return matmul_kernel(x.view, y.view, {out, o.add}, space);
  }
  const Tensor buffer = workspace(out.shape, matmul_buffer_type(kind, x.view, out), out.device);
  matmul_kernel(x.view, y.view, Grad::write_to(buffer), space);
  add_into_kernel({out, o.add}, buffer);
}

}  // namespace quipu::detail
