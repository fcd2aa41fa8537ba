// Position encodings: o = encoded(act(x), angles), each head with angles of its own
// (row_transform.h). An angle is theta times a position, so theta gets the gradients of its angles
// times their positions.
#include "quipu/cpu/reference/row_transform.h"

namespace quipu::detail {
namespace reference {
namespace {

void lrpe_forward(View x, View o, View angles, const RowTransform& transform, View) {
  if (x.numel() == 0) return;
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
  Values in = read(x), up = read(d_o), d_in(shape), terms(shape);
  Values found = angles.defined ? read(angles) : find_angles(transform, heads, shape[2], shape[3]);
  for (std::int64_t i = 0; i < shape[0] * heads; ++i) {
    const Matrix d_y = encoded_back(up.matrix(i), found.matrix(i % heads), transform.kind);
    d_in.matrix(i) = x.defined ? activated_back(in.matrix(i), d_y, transform) : d_y;
    if (x.defined) terms.matrix(i) = terms_of_activated_back(in.matrix(i), d_y, transform);
  }
  store(d_x, d_in, terms.flat);
}

void lrpe_theta(View x, View d_o, Grad d_theta, View angles, const RowTransform& transform, View) {
  const std::int64_t heads = x.size(1), tokens = x.size(2);
  Values in = read(x), up = read(d_o), d(d_theta.view.shape), terms(d.shape);
  Values found = angles.defined ? read(angles) : find_angles(transform, heads, tokens, x.size(3));
  const std::int64_t columns = columns_for(d_theta.view, x.size(3)).size(1);  // those of an axis
  for (std::int64_t i = 0; i < x.size(0) * heads; ++i) {
    const Matrix y = activated(in.matrix(i), transform);
    const Matrix d_angles = angles_back(y, up.matrix(i), found.matrix(i % heads), transform.kind);
    const std::int64_t row = d.size(0) == 1 ? 0 : i % heads;
    for (std::int64_t t = transform.lead; t < tokens; ++t) {
      for (std::int64_t j = 0; j < d_angles.cols(); ++j) {
        if (transform.grid.empty() && j >= columns && columns != 1) break;
        const double term = position_of(t, j, columns, transform) * d_angles(t, j);
        d.matrix(0)(row, j % columns) += term;
        terms.matrix(0)(row, j % columns) += std::abs(term);
      }
    }
  }
  store(d_theta, d, terms.flat);
}

}  // namespace
}  // namespace reference

void register_reference_lrpe() {
  lrpe_forward_kernel.provide(Variant::reference, reference::lrpe_forward);
  lrpe_backward_kernel.provide(Variant::reference, reference::lrpe_backward);
  lrpe_theta_kernel.provide(Variant::reference, reference::lrpe_theta);
}

}  // namespace quipu::detail
