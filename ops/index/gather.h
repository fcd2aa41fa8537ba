#pragma once
// Reading and adding at indices. Index tensors are i64 or i32; an index out of range is an error.
#include "quipu/core/tensor.h"

namespace quipu {

/// o[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`. index has as many dimensions as x and is
/// no larger than x in the others; the result has its shape. Keeps the index.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// o[.., i, ..] = x[.., index[i], ..] along `dim`; index is 1-d. Rows of an embedding:
/// index_select(table, 0, ids). Keeps the index.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// x with source[.., i, ..] added at [.., index[.., i, ..], ..]; index and source have one shape,
/// no larger than x in the other dimensions. Keeps the index.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

}  // namespace quipu
