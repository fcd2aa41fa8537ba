#pragma once
// Cases of the fused operators, all alike: `op/variant/pass/dtype/n:256/cpu`, with bytes/s, flop/s,
// the peak of memory and the share of what the machine can do at best as counters.
//
// n counts tokens; QUIPU_BENCH_N=256,4096 takes others than the default 256.
// QUIPU_BENCH_DEVICE=cuda takes another device than the CPU, waits for each call, and leaves out
// the share of the limit. Backward is timed the published way: the output and all gradients are
// there, and each call adds into them. In f32 a row `.../reference` follows: the same by plain
// formulas on Eigen (cpu/reference/), and how many times faster the kernel is (`fast_is_times`).
#include <functional>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::bench {

/// What one call moves and computes at least, as the operator needs it and not as a kernel does it.
struct Work {
  double bytes = 0;
  double flops = 0;
};

/// One operator, ready to be called.
struct OperatorRun {
  std::vector<Tensor> inputs;  // all of them get gradients in backward
  std::function<Tensor(const std::vector<Tensor>&)> call;
  Work forward, backward;  // backward: gradients read and written
};

enum class Passes { forward, both };

/// Registers a case for every dtype and n. `prepare` makes the inputs when a case is run. The
/// variant may be empty.
void add_operator(const std::string& op, const std::string& variant,
                  const std::function<OperatorRun(DType dtype, std::int64_t n)>& prepare,
                  Passes passes = Passes::both);

/// The CPU unless QUIPU_BENCH_DEVICE names another.
Device bench_device();
/// Normal numbers on it, rounded to the type.
Tensor normal(const Shape& shape, DType dtype);

/// The bytes of a number of elements.
inline double bytes_of(double elements, DType dtype) {
  return elements * static_cast<double>(size_of(dtype));
}

// The published sizes.
inline constexpr std::int64_t batch = 12, heads = 12, head_dim = 128;

}  // namespace quipu::bench
