#pragma once
// Whether two views of one storage may share an element. Internal.
#include "quipu/core/dispatch/view.h"

namespace quipu::detail {

/// False only where they share none: by their ranges, or, as with two slices of one tensor, by
/// strides that they have in common. Where it would take long to tell, the answer is true.
bool may_overlap(const View& a, const View& b);

}  // namespace quipu::detail
