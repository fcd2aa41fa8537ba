// Normalisation of rows x, all channels of a group:
//   o = x^ weight + bias,  x^ = (x - mean) inverse,  inverse = 1 / sqrt(mean of (x - mean)^2 + eps)
// where mean is 0 unless it is subtracted. With u = d_o weight, the gradients are
//   d_x = inverse (u - mean of u - x^ mean of (u x^)), d_weight = sum of d_o x^, d_bias = sum of
//   d_o
// where the mean of u is there only if that of x was subtracted.
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/norm_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// One number a channel, (groups, channels); the same one for all where there are none.
Matrix channels_of(const View& view, const View& x, double otherwise) {
  if (x.size(0) == 0) return {};  // nobody asks, and there may be very many
  if (!view.defined) return Matrix::Constant(x.size(1), x.size(2), otherwise);
  return read(view).matrix(0);
}

void norm_forward(View x, View weight, View bias, View o, View mean, View inverse, bool centered,
                  double eps) {
  Values in = read(x), out(x.shape), terms(x.shape);
  const std::int64_t groups = x.size(1), rows = x.size(0) * groups;
  const auto length = static_cast<double>(x.size(2) * x.size(3));
  const Matrix w = channels_of(weight, x, 1), b = channels_of(bias, x, 0);
  Array means = Array::Zero(rows), inverses(rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = in.matrix(r).array();  // (channels, inner)
    if (centered) means[r] = row.sum() / length;
    inverses[r] = 1 / std::sqrt((row - means[r]).square().sum() / length + eps);
    const auto w_of_channel = w.row(r % groups).transpose().array();
    const auto b_of_channel = b.row(r % groups).transpose().array();
    out.matrix(r) =
        (((row - means[r]) * inverses[r]).colwise() * w_of_channel).colwise() + b_of_channel;
    terms.matrix(r) =
        ((row.abs() + std::abs(means[r])) * inverses[r]).colwise() * w_of_channel.abs();
  }
  store(Target::write_to(o), out, terms.flat);
  store(mean, means);
  store(inverse, inverses);
}

void norm_backward(View x, View weight, View d_o, View mean, View inverse, Grad d_x, Grad d_weight,
                   Grad d_bias, View) {
  Values in = read(x), up = read(d_o), d_in(x.shape), terms(x.shape);
  const std::int64_t groups = x.size(1), rows = x.size(0) * groups;
  const auto length = static_cast<double>(x.size(2) * x.size(3));
  const Matrix w = channels_of(weight, x, 1);
  const Array means = mean.defined ? read(mean).flat : Array::Zero(rows);
  const Array inverses = read(inverse).flat;
  const bool of_channels = d_weight.wanted() || d_bias.wanted() || rows > 0;
  Values d_w(of_channels ? Shape{groups, x.size(2)} : Shape{0}), d_b(d_w.shape);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto d_row = up.matrix(r).array();  // (channels, inner)
    const Matrix x_hat = (in.matrix(r).array() - means[r]) * inverses[r];
    d_w.matrix(0).row(r % groups) +=
        d_row.cwiseProduct(x_hat.array()).rowwise().sum().matrix().transpose();
    d_b.matrix(0).row(r % groups) += d_row.rowwise().sum().matrix().transpose();
    const Matrix u = d_row.colwise() * w.row(r % groups).transpose().array();
    const double mean_of_u = mean.defined ? u.sum() / length : 0;
    const double mean_of_product = u.cwiseProduct(x_hat).sum() / length;
    d_in.matrix(r) = inverses[r] * (u.array() - mean_of_u - x_hat.array() * mean_of_product);
    terms.matrix(r) = inverses[r] * (u.array().abs() + std::abs(mean_of_u) +
                                     x_hat.array().abs() * std::abs(mean_of_product));
  }
  store(d_x, d_in, terms.flat);
  store(d_weight, d_w);
  store(d_bias, d_b);
}

}  // namespace
}  // namespace reference

void register_reference_norm() {
  norm_forward_kernel.provide(Variant::reference, reference::norm_forward);
  norm_backward_kernel.provide(Variant::reference, reference::norm_backward);
}

}  // namespace quipu::detail
