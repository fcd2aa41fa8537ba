#pragma once
// Reading and adding at indices. Index tensors are i64 or i32; an index out of range is an error.
#include <cstdint>

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

/// What becomes of an entry that scatter() names.
enum class ScatterMode : std::uint8_t { overwrite, mul, max, min };
/// As scatter_add, but the entry becomes source, or the product, larger or smaller of it and what
/// is there; NaN wins. Where a position is named several times, the last one overwrites, and all of
/// them are multiplied or compared. Gradients go to what the result is made of; of equal ones
/// to x, then to the first. Keeps x and source but for overwrite.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
               ScatterMode mode = ScatterMode::overwrite);

}  // namespace quipu
