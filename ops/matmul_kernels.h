#pragma once
// What a back end provides for matrix products.
#include <algorithm>

#include "quipu/core/dispatch.h"

namespace quipu {

/// Bytes of scratch memory that a product with an m x n result gets: on CUDA as much as several
/// parts of the sums of a small result take, since that is how cuBLAS splits long sums.
inline std::int64_t matmul_workspace(DeviceKind kind, std::int64_t m, std::int64_t n) {
  constexpr std::int64_t most = std::int64_t{4} << 20, parts = 32, element = 4;
  if (kind == DeviceKind::cpu || m <= 0 || n <= 0) return 0;
  return m > most / n ? most : std::min(most, m * n * parts * element);
}

/// Whether a device can leave the products in o itself: cuBLAS has no results wider than f32 from
/// narrower operands, and rounds each of several products that are summed.
inline bool matmul_reaches(const View& a, const View& b, const View& o) {
  if (o.device.kind() == DeviceKind::cpu) return true;
  if (o.dtype != a.dtype && !(is_reduced(a.dtype) && o.dtype == DType::f32)) return false;
  for (int d = 0; d + 2 < o.dim(); ++d) {
    if (is_reduced(o.dtype) && o.size(d) == 1 && std::max(a.size(d), b.size(d)) > 1) return false;
  }
  return true;
}

/// o (=|+=) a b over the two last dimensions: a (..., m, k), b (..., k, n), o (..., m, n), all of
/// one floating dtype (o may also be f32 or f64). All three have the same number of dimensions;
/// batch dimensions broadcast, and where o has size 1 and a or b more, the products are summed. One
/// of the two last strides of each is 1 (or its size is at most 1), and o has no stride 0.
/// Accumulates in f32 (f64 for f64) and rounds once. `space` are matmul_workspace bytes, or not
/// defined where there is little use for them; o is one that matmul_reaches.
inline constinit Kernel<void(View a, View b, Grad o, View space)> matmul_kernel{"matmul"};

}  // namespace quipu
