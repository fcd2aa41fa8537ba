// Position encodings: o = encoded(act(x), angles), each head with angles of its own
// (row_transform.h).
#include "quipu/cpu/reference/row_transform.h"

namespace quipu::detail {
namespace reference {
namespace {

void lrpe_forward(View x, View o, View angles, const RowTransform& transform, View) {
  const std::int64_t heads = x.size(1);
  Values in = read(x), out(o.shape), found = find_angles(transform, heads, x.size(2), x.size(3));
  for (std::int64_t i = 0; i < x.size(0) * heads; ++i) {
    const Matrix y = activated(in.matrix(i), transform);
    out.matrix(i) = encoded(y, found.matrix(i % heads), transform.kind);
  }
  store(o, out);
  store(angles, found);
}

void lrpe_backward(View x, View d_o, Grad d_x, View angles, const RowTransform& transform, View) {
  const Shape& shape = d_x.view.shape;
  const std::int64_t heads = shape[1];
  Values in = read(x), up = read(d_o), d_in(shape);
  Values found = angles.defined ? read(angles) : find_angles(transform, heads, shape[2], shape[3]);
  for (std::int64_t i = 0; i < shape[0] * heads; ++i) {
    const Matrix d_y = encoded_back(up.matrix(i), found.matrix(i % heads), transform.kind);
    d_in.matrix(i) = x.defined ? activated_back(in.matrix(i), d_y, transform) : d_y;
  }
  store(d_x, d_in);
}

}  // namespace
}  // namespace reference

void register_reference_lrpe() {
  lrpe_forward_kernel.provide(Variant::reference, reference::lrpe_forward);
  lrpe_backward_kernel.provide(Variant::reference, reference::lrpe_backward);
}

}  // namespace quipu::detail
