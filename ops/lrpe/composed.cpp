// Position encodings from smaller operators: angles, cos and sin are whole tensors, in f32 or f64,
// and the activation is rounded before it is encoded.
#include "quipu/ops/join.h"
#include "quipu/ops/lrpe/support.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/unary.h"

namespace quipu {
using namespace detail;
namespace {

/// theta with all its columns, (h or 1, angles), in the compute type.
Tensor all_columns(const Tensor& theta, std::int64_t angles) {
  const Tensor wide = theta.to(compute_type(theta.dtype()));
  const std::int64_t rows = theta.size(0), missing = angles - theta.size(1);
  if (theta.size(1) == 1) return wide.expand({rows, angles});
  if (missing == 0) return wide;
  const Tensor none = zeros({rows, missing}, wide.dtype(), wide.device());
  return cat({wide, none}, 1);
}

/// The angles of x (b, n, h, d) or (b, n, d): (n, h or 1, angles) or (n, angles).
Tensor angles_1d(const Tensor& x, const Tensor& theta, std::int64_t angles, std::int64_t offset) {
  const Tensor columns = all_columns(theta, angles);
  const Tensor position = (arange(x.size(1), i64, x.device()) + offset).to(columns.dtype());
  const Tensor angle = position.reshape({-1, 1, 1}) * columns;
  return x.dim() == 4 ? angle : angle.squeeze(1);
}

/// Along the grid axes one after the other, each token by token: (h or 1, l + prod(shape), d).
Tensor angles_md(const Tensor& x, const Tensor& theta, const Shape& shape, std::int64_t l) {
  const Tensor columns = all_columns(theta, theta.size(1)).unsqueeze(1);
  std::vector<Tensor> blocks;
  for (int axis = 0; axis < shape.size(); ++axis) {
    Shape along = Dims::filled(shape.size(), 1);
    along[axis] = shape[axis];
    const Tensor index = arange(shape[axis], i64, x.device()).to(columns.dtype());
    const Tensor everywhere = index.reshape(along).expand(shape).reshape({1, numel(shape), 1});
    blocks.push_back(everywhere * columns);
  }
  const Tensor grid = cat(blocks, 2).slice(2, 0, x.size(3));
  const Tensor lead = zeros({grid.size(0), l, x.size(3)}, grid.dtype(), grid.device());
  return cat({lead, grid}, 1);
}

Tensor cosine(const Tensor& y, const Tensor& angle) {
  return cat({y * cos(angle), y * sin(angle)}, -1).to(y.dtype());
}

}  // namespace

Tensor detail::lrpe_rotate_composed(const Tensor& x, const Tensor& theta,
                                    const LrpeOptions& options) {
  check_lrpe(LrpeKind::rotate, x, theta, options);
  const Tensor y = act_composed(x, options.act, options.dim);
  const std::int64_t half = x.size(-1) / 2;
  const Tensor angle = angles_1d(x, theta, half, options.offset);
  const Tensor a = y.slice(-1, 0, half), b = y.slice(-1, half);
  const Tensor cosine = cos(angle), sine = sin(angle);
  return cat({a * cosine - b * sine, a * sine + b * cosine}, -1).to(x.dtype());
}

Tensor detail::lrpe_cosine_composed(const Tensor& x, const Tensor& theta,
                                    const LrpeOptions& options) {
  check_lrpe(LrpeKind::cosine, x, theta, options);
  return cosine(act_composed(x, options.act, options.dim),
                angles_1d(x, theta, x.size(-1), options.offset));
}

Tensor detail::lrpe_cosine_md_composed(const Tensor& x, const Tensor& theta, const Shape& shape,
                                       const LrpeMdOptions& options) {
  check_lrpe_md(x, theta, shape, options);
  return cosine(act_composed(x, options.act, options.dim), angles_md(x, theta, shape, options.l));
}

}  // namespace quipu
