// Matrix products: o (=|+=) a b for each matrix of a batch. Batch dimensions of size 1 are
// repeated; where o has size 1, the products are summed.
#include <vector>

#include "quipu/cpu/reference/values.h"
#include "quipu/ops/matmul/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

Shape batch_of(Shape shape) {
  shape.erase(shape.size() - 1), shape.erase(shape.size() - 1);
  return shape;
}

/// For each entry of a batch the matrix that a tensor of this shape has there.
std::vector<std::int64_t> matrices_of(const Shape& shape, const Shape& batch) {
  Strides steps = contiguous_strides(batch_of(shape));
  for (int i = 0; i < batch.size(); ++i) {
    if (shape[i] == 1) steps[i] = 0;
  }
  std::vector<std::int64_t> matrices;
  for_each_element(batch, steps, [&](std::int64_t, std::int64_t at) { matrices.push_back(at); });
  return matrices;
}

void matmul(View a, View b, Target o, View) {
  Values factor_a = read(a), factor_b = read(b), product(o.view.shape);
  Shape batch = batch_of(a.shape);
  for (int i = 0; i < batch.size(); ++i) {
    if (batch[i] == 1) batch[i] = b.shape[i];
  }
  const auto at_a = matrices_of(a.shape, batch), at_b = matrices_of(b.shape, batch),
             at_o = matrices_of(o.view.shape, batch);
  for (std::size_t i = 0; i < at_o.size(); ++i) {
    product.matrix(at_o[i]) += factor_a.matrix(at_a[i]) * factor_b.matrix(at_b[i]);
  }
  store(o, product);
}

}  // namespace
}  // namespace reference

void register_reference_matmul() {
  matmul_kernel.provide(Variant::reference, reference::matmul);
}

}  // namespace quipu::detail
