#pragma once
// The gradient of theta, for the position encodings and for what has them fused in.
// Internal to ops/.
#include "quipu/ops/lrpe/kernels.h"

namespace quipu::detail {

/// d_theta (=|+=) its gradient from x (b, h, t, d) and that of its encoded rows, d_o, of the type
/// of x or of its compute type; either theta in the transform or `angles` must be there. Softmax is
/// computed again as a whole, in the compute type: it is workspace, as large as x.
void differentiate_theta(View x, const View& d_o, const Grad& d_theta, const View& angles,
                         RowTransform transform);

}  // namespace quipu::detail
