#pragma once
// What this machine can do at best, measured on the threads that parallel_for uses: the yardsticks
// of the benchmarks.
#include <cstddef>

#include "quipu/core/dtype.h"

namespace quipu::bench {

/// How many sets of data take turns, so that 16 MiB come from memory even where a cache is large.
inline constexpr int copies_in_turn = 8;

/// Bytes read plus bytes written per second while `bytes` bytes are copied from memory to memory,
/// the median of several runs.
double copy_bandwidth(std::size_t bytes);

/// Floating-point operations per second (a multiply-add is two) of the vector units that
/// cpu_level() uses, working on registers alone, the best of several runs. f32 or f64.
double multiply_add_peak(DType dtype);

/// What the shares `of_copy` and `of_peak` are of: copy_bandwidth for 16 MiB, and the peak of the
/// type that is computed in (f32 for all but f64). Measured at the first call.
double copy_limit();
double peak_limit(DType dtype);

}  // namespace quipu::bench
