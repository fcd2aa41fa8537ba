#pragma once
// The loops behind `Pointwise`: one a function and compute type, over dense tiles.
#include <cstdint>

#include "quipu/ops/pointwise/kernels.h"

namespace quipu::detail::on_cpu {

/// o[i] = f(a[i], b[i], c[i]) for n elements; o may be one of the operands. Operands that f does
/// not have are not read.
template <class T>
using PointwiseFunction = void (*)(const T* a, const T* b, const T* c, T* o, std::int64_t n);

/// The loop for f; T is float, double or int64_t. Null if f does not exist for whole numbers.
template <class T>
PointwiseFunction<T> pointwise_function(Pointwise f);
/// The same of the rarer functions alone.
template <class T>
PointwiseFunction<T> rare_function(Pointwise f);

/// The loop that adds: o[i] += f(...). Null where a tile of results that are added in a loop of
/// their own does as well: where there is more to compute than relu's gradient has.
template <class T>
PointwiseFunction<T> adding_function(Pointwise f);

/// o[i] (=|+=) f(a[i], b[i]) for bf16, computed in f32 and rounded once. Null for functions that
/// have no such loop. One pass, where tiles of f32 would take longer than the memory.
using Bf16Function = void (*)(const BFloat16* a, const BFloat16* b, BFloat16* o, std::int64_t n,
                              bool add);
Bf16Function bf16_function(Pointwise f);

}  // namespace quipu::detail::on_cpu
