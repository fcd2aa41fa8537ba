#pragma once
// Activations by their own names, element by element; floating types, of which they keep the input.
// `act` (ops/act.h) has those that fused operators take as an option, gelu.h the Gaussian one, and
// ops/softmax.h softmax.
#include "quipu/core/tensor.h"

namespace quipu {

/// max(x, 0). Keeps NaN; gradient 0 at 0.
Tensor relu(const Tensor& x);
/// s(x) = 1 / (1 + e^-x)
Tensor sigmoid(const Tensor& x);
/// x s(x) (Elfwing et al. 2017, arXiv:1702.03118)
Tensor silu(const Tensor& x);
/// log(1 + e^x), without overflow and with all its digits where it is small
Tensor softplus(const Tensor& x);
/// x where x > 0, else alpha (e^x - 1) (Clevert et al. 2015, arXiv:1511.07289)
Tensor elu(const Tensor& x, double alpha = 1);
/// x where x > 0, else slope x
Tensor leaky_relu(const Tensor& x, double slope = 0.01);
/// x tanh(softplus(x)) (Misra 2019, arXiv:1908.08681)
Tensor mish(const Tensor& x);
/// x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, arXiv:1905.02244); gradient 0 at -3, 1 at 3
Tensor hardswish(const Tensor& x);

}  // namespace quipu
