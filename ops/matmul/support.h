#pragma once
// What operators share that multiply matrices. What the kernel wants is arranged here: equal
// numbers of dimensions, matrices with one unit stride, and few large products instead of many
// small ones. A batch of rows times one matrix is folded into one product, in backward too, where
// the gradient of the matrix is then a single product as well. Internal to ops/.
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// The two last dimensions swapped.
View transposed(View v);

/// Folds the batches of `a` and `b` into their rows where both allow it and the other matrix of the
/// product has none.
void fold_both(View& a, View& b, const View& matrix);

/// o (=|+=) a b; whatever the kernel cannot read or write goes through workspace.
void multiply(const View& a, const View& b, const Target& o);

}  // namespace quipu::detail
