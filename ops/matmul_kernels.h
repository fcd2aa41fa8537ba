#pragma once
// What a back end provides for matrix products.
#include "quipu/core/dispatch.h"

namespace quipu {

/// o (=|+=) a b over the two last dimensions: a (..., m, k), b (..., k, n), o (..., m, n), all of
/// one floating dtype (o may also be f32 or f64). All three have the same number of dimensions;
/// batch dimensions broadcast, and where o has size 1 and a or b more, the products are summed. One
/// of the two last strides of each is 1 (or its size is at most 1), and o has no stride 0.
/// Accumulates in f32 (f64 for f64) and rounds once.
inline constinit Kernel<void(View a, View b, Grad o)> matmul_kernel{"matmul"};

}  // namespace quipu
