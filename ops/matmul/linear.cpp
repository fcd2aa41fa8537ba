#include "quipu/ops/matmul/linear.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/matmul/matmul.h"
#include "quipu/ops/matmul/support.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// The shape of the output.
Shape check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_floating("x", x.dtype());
  check_same_dtype("x", x, "weight", weight);
  check_same_device("x", x, "weight", weight);
  check(x.dim() >= 1, "x has shape ", x.shape(), ", but (..., in) is wanted");
  check(weight.dim() == 2, "weight has shape ", weight.shape(), ", but (out, in) is wanted");
  check(weight.size(1) == x.size(-1), "weight has shape ", weight.shape(), ", but x has shape ",
        x.shape(), " (both end with the number of features that go in)");
  if (bias.defined()) {
    check_same_dtype("x", x, "bias", bias);
    check_same_device("x", x, "bias", bias);
    check(bias.shape() == Shape{weight.size(0)}, "bias has shape ", bias.shape(),
          ", but weight has shape ", weight.shape(), " and needs ", Shape{weight.size(0)});
  }
  Shape shape = x.shape();
  shape[shape.size() - 1] = weight.size(0);
  return shape;
}

/// o (=|+=) rows matrix, the rows folded together where strides allow it.
void multiply_rows(View rows, const View& matrix, Target o) {
  fold_both(rows, o.view, matrix);
  multiply(rows, matrix, o);
}

/// left^T right, summed over all rows.
void multiply_columns(View left, View right, const Target& o) {
  fold_both(left, right, o.view);
  multiply(transposed(left), right, o);
}

struct LinearRule {
  Saved x, weight;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { multiply_rows(d_o, weight, g); });
    d.with(1, [&](const Grad& g) { multiply_columns(d_o, x, g); });
    d.with(2, [&](const Grad& g) { add_into_kernel(g, d_o); });
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const OpScope op("linear");
  const Tensor o = empty(check_linear(x, weight, bias), x.dtype(), x.device());
  Grad sums = Target::write_to(o);
  if (bias.defined()) {
    // The product adds to what is there, so it rounds once, with the bias.
    View every_row = bias;
    every_row.strides = broadcast_strides(bias.shape(), bias.strides(), o.shape());
    every_row.shape = o.shape();
    copy_kernel(o, every_row);
    sums.add = true;
  }
  multiply_rows(x, transposed(weight), sums);
  return tie(o, {x, weight, bias},
             LinearRule{save_if(weight.requires_grad(), x), save_if(x.requires_grad(), weight)});
}

Tensor detail::linear_composed(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_linear(x, weight, bias);
  const Tensor o = matmul(x, weight.t());
  return bias.defined() ? o + bias : o;
}

void detail::linear_backward(const Tensor& x, const Tensor& weight, const Tensor& d_o,
                             const Grad& d_x, const Grad& d_weight, const Grad& d_bias) {
  const OpScope op("linear_backward");
  const Shape shape = check_linear(x, weight, {});
  check_same_dtype("x", x, "d_o", d_o);
  check_same_device("x", x, "d_o", d_o);
  check(d_o.shape() == shape, "d_o has shape ", d_o.shape(), ", but the output has shape ", shape);
  check_grad("d_x", d_x, x.shape(), x.device());
  check_grad("d_weight", d_weight, weight.shape(), x.device());
  check_grad("d_bias", d_bias, {weight.size(0)}, x.device());
  if (d_x.wanted()) multiply_rows(d_o, weight, d_x);
  if (d_weight.wanted()) multiply_columns(d_o, x, d_weight);
  if (d_bias.wanted()) add_into_kernel(d_bias, d_o);
}

}  // namespace quipu
