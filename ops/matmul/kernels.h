#pragma once
// What a back end provides for matrix products. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/query.h"

namespace quipu::detail {

/// Bytes of scratch memory that a product with an m x n result gets.
inline constinit Query<std::int64_t(std::int64_t m, std::int64_t n)> matmul_workspace{
    "matmul_workspace"};
/// Whether a back end can leave the products in o itself.
inline constinit Query<bool(const View& a, const View& b, const View& o)> matmul_reaches{
    "matmul_reaches"};
/// Where it cannot: the type of a buffer that it leaves them in.
inline constinit Query<DType(const View& a, const View& o)> matmul_buffer_type{
    "matmul_buffer_type"};

/// Into how many parts of equal length the sums of `products` m x n results of length k are cut, so
/// that few results are work for many threads: each part leaves a result of its own.
inline constinit Query<std::int64_t(std::int64_t products, std::int64_t m, std::int64_t n,
                                    std::int64_t k)>
    matmul_parts{"matmul_parts"};

/// o (=|+=) a b over the two last dimensions: a (..., m, k), b (..., k, n), o (..., m, n), all of
/// one floating dtype (o may also be f32 or f64). All three have the same number of dimensions;
/// batch dimensions broadcast, and where o has size 1 and a or b more, the products are summed. One
/// of the two last strides of each is 1 (or its size is at most 1), and o has no stride 0.
/// Accumulates in f32 (f64 for f64) and rounds once. `space` are matmul_workspace bytes, or not
/// defined where there is little use for them; o is one that matmul_reaches.
inline constinit Kernel<void(View a, View b, Target o, View space)> matmul_kernel{"matmul",
                                                                                  "a b o space*"};

}  // namespace quipu::detail
