// Softmax along an axis: o = exp(x - max x) / sum of exp(x - max x), and its gradient
// d_x = o (d_o - mean), where the mean of d_o has the weights o / sum of o: o was rounded when it
// was stored, and its sum may be off 1.
#include "quipu/cpu/reference/values.h"
#include "quipu/ops/act_kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

void softmax_forward(View x, View o, View, int axis) {
  Values v = read(with_axis_last(x, axis));
  for (auto row : v.rows().rowwise()) {
    row.array() = exp_of(row.array() - row.maxCoeff<Eigen::PropagateNaN>()).eval();
    row /= row.sum();
  }
  store(with_axis_last(o, axis), v);
}

void softmax_backward(View o, View d_o, Grad d_x, View, int axis) {
  Values weights = read(with_axis_last(o, axis)), d = read(with_axis_last(d_o, axis));
  Values terms(d.shape);
  MatrixMap rows = weights.rows(), d_rows = d.rows(), sizes = terms.rows();
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const double mean = rows.row(r).dot(d_rows.row(r)) / rows.row(r).sum();
    sizes.row(r) = rows.row(r).array() * (d_rows.row(r).array().abs() + std::abs(mean));
    d_rows.row(r) = rows.row(r).array() * (d_rows.row(r).array() - mean);
  }
  store(with_axis_last(d_x, axis), d, terms.flat);
}

}  // namespace
}  // namespace reference

void register_reference_softmax() {
  softmax_forward_kernel.provide(Variant::reference, reference::softmax_forward);
  softmax_backward_kernel.provide(Variant::reference, reference::softmax_backward);
}

}  // namespace quipu::detail
