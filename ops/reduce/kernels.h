#pragma once
// What a back end provides for reductions that are not sums, and for running sums. (Sums:
// ops/pointwise/kernels.h.)
// Internal to ops/ and the back ends.
#include "quipu/core/dispatch/dispatch.h"

namespace quipu::detail {

/// The largest or smallest entry along `axis`, and where the first of them stands; NaN wins. Shapes
/// keep the axis with size 1; `values` or `index` (i64) may be left undefined.
inline constinit Kernel<void(View x, View values, View index, int axis, bool largest)>
    extreme_kernel{"extreme", "x values index axis largest", Agreement::equal};

/// o (=|+=) running sum of x along `axis`, from the far end if `reverse`. Summed in f64 (whole
/// numbers: i64).
inline constinit Kernel<void(View x, Target o, int axis, bool reverse)> cumsum_kernel{
    "cumsum", "x o axis reverse"};

}  // namespace quipu::detail
