#pragma once
// dropout (Srivastava et al. 2014, JMLR 15), inverted: the scale is applied while training.
#include "quipu/core/tensor.h"

namespace quipu {

/// Each entry becomes 0 with probability p and is divided by 1 - p otherwise. Keeps no mask:
/// backward draws it again.
Tensor dropout(const Tensor& x, double p, Generator& generator = default_generator());

}  // namespace quipu
