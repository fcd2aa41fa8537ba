#pragma once
// What a back end provides for matrix products.
#include "quipu/core/dispatch.h"

namespace quipu {

/// Workspace of any product, in bytes: what cuBLAS may use on CUDA, none elsewhere. It asks for
/// 32 MiB on the devices that want most; a fixed size keeps the choice of its algorithms, and with
/// it the bits, the same. It is there while a product runs, not for the life of a handle.
constexpr std::int64_t matmul_workspace_bytes(DeviceKind kind) {
  return kind == DeviceKind::cuda ? std::int64_t{32} << 20 : 0;
}

/// o (=|+=) a b over the two last dimensions: a (..., m, k), b (..., k, n), o (..., m, n), all of
/// one floating dtype (o may also be f32 or f64). All three have the same number of dimensions;
/// batch dimensions broadcast, and where o has size 1 and a or b more, the products are summed. One
/// of the two last strides of each is 1 (or its size is at most 1), and o has no stride 0.
/// Accumulates in f32 (f64 for f64) and rounds once. Workspace is undefined where none is needed.
inline constinit Kernel<void(View a, View b, Grad o, View workspace)> matmul_kernel{"matmul"};

}  // namespace quipu
