#pragma once
// The largest or smallest entries along a dimension.
#include "quipu/core/tensor.h"

namespace quipu {

/// Both have the shape of x, with k entries along the dimension.
struct TopK {
  Tensor values;   // of the type of x
  Tensor indices;  // i64, along the dimension
};

/// The k largest (or smallest) entries along `dim`, best first; of equal ones the first comes
/// first. NaN counts as larger than everything. Any dtype and strides. Gradients flow to the
/// entries that were chosen; keeps their indices.
TopK top_k(const Tensor& x, std::int64_t k, int dim = -1, bool largest = true);

namespace detail {

/// Without any tape: d_x (=|+=) gradient, given the indices that top_k found.
void top_k_backward(const Tensor& indices, const Tensor& d_values, const Grad& d_x, int dim = -1);

}  // namespace detail
}  // namespace quipu
