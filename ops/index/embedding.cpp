#include "quipu/ops/index/embedding.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/dense_support.h"
#include "quipu/ops/index/embedding_kernels.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// The shape of the result.
Shape rows_shape(const Tensor& indices, std::int64_t row) {
  Shape shape = indices.shape();
  shape.push_back(row);
  return shape;
}

void add_rows(const Tensor& indices, const Tensor& d_o, const Grad& g) {
  const Tensor places = dense(indices), rows = dense(d_o);
  const std::int64_t count = indices.numel();
  if (!g.add) fill_kernel(g.view, 0.0);
  add_at_index(g.view, seen_as(places, {count}), seen_as(rows, {count, d_o.size(-1)}), 0);
}

struct EmbeddingRule {
  Saved indices;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { add_rows(indices, d_o, g); });
  }
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  const OpScope op("embedding");
  check_index("indices", indices);
  check_same_device("weight", weight, "indices", indices);
  check(weight.dim() == 2, "weight has shape ", weight.shape(), ", but (rows, features) is wanted");
  embedding_check_kernel(indices, weight.size(0));
  const std::int64_t count = indices.numel(), row = weight.size(1);
  const Tensor o = empty(rows_shape(indices, row), weight.dtype(), weight.device());
  const Tensor places = dense(indices);
  index_select_kernel(weight, seen_as(places, {count}), seen_as(o, {count, row}), 0);
  return tie(o, {weight}, EmbeddingRule{save_if(weight.requires_grad(), indices)});
}

void detail::embedding_backward(const Tensor& indices, const Tensor& d_o, const Grad& d_weight) {
  const OpScope op("embedding_backward");
  check_index("indices", indices);
  check_same_device("indices", indices, "d_o", d_o);
  const View& g = d_weight.view;
  check(g.dim() == 2, "d_weight has shape ", g.shape, ", but (rows, features) is wanted");
  const Shape wanted = rows_shape(indices, g.size(1));
  check(d_o.shape() == wanted, "d_o has shape ", d_o.shape(), ", but indices of shape ",
        indices.shape(), " and d_weight of shape ", g.shape, " need ", wanted);
  embedding_check_kernel(indices, g.size(0));
  add_rows(indices, d_o, d_weight);
}

}  // namespace quipu
