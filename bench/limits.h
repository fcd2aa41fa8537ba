#pragma once
// What this machine can do at best, measured on the threads that parallel_for uses: the yardsticks
// of the benchmarks.
#include <cstddef>

#include "quipu/core/dtype.h"

namespace quipu::bench {

/// Bytes read plus bytes written per second while `bytes` bytes are copied, the best of several
/// runs.
double copy_bandwidth(std::size_t bytes);

/// Floating-point operations per second (a multiply-add is two) of the vector units of this build,
/// working on registers alone, the best of several runs. f32 or f64.
double multiply_add_peak(DType dtype);

}  // namespace quipu::bench
