#pragma once
// What the fused position encodings and their compositions ask of their arguments.
// Internal to ops/.
#include "quipu/ops/lrpe/kernels.h"
#include "quipu/ops/lrpe/lrpe.h"

namespace quipu::detail {

void check_lrpe(LrpeKind kind, const Tensor& x, const Tensor& theta, const LrpeOptions& options);
void check_lrpe_md(const Tensor& x, const Tensor& theta, const Shape& shape,
                   const LrpeMdOptions& options);

}  // namespace quipu::detail
