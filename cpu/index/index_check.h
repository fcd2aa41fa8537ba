#pragma once
// What kernels with index tensors share.
#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cpu {

/// Throws unless all indices lie in [0, size), where `size` is that of dimension `axis` of x; names
/// the first that does not.
void check_indices(const View& index, std::int64_t size, int axis);

/// A 1-d index repeated over all other dimensions of `shape`.
View along_axis(const View& index, const Shape& shape, int axis);

}  // namespace quipu::detail::on_cpu
