#pragma once
// What the fused position encodings and their compositions ask of their arguments.
#include "quipu/ops/lrpe.h"
#include "quipu/ops/lrpe_kernels.h"

namespace quipu {

void check_lrpe(LrpeKind kind, const Tensor& x, const Tensor& theta, const LrpeOptions& options);
void check_lrpe_md(const Tensor& x, const Tensor& theta, const Shape& shape,
                   const LrpeMdOptions& options);

}  // namespace quipu
