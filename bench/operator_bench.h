#pragma once
// Cases of the operators that have n, all alike: `op/variant/pass/dtype/n:256/cpu`, with bytes/s,
// flop/s, the peak of memory and the shares of what the machine can do (`of_copy`, `of_peak`, which
// a GPU's rows lack) as counters. n counts tokens.
//
// Backward is timed the published way: the output and all gradients are there, and each call adds
// into them. In f32 a row `.../reference` follows: the same by plain formulas on Eigen
// (cpu/reference/), and how many times faster the kernel is (`fast_is_times`).
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

/// Adds an operator, whose cases `register_cases` makes. `prepare` makes the inputs when a case is
/// run. The variant may be empty.
void add_operator(const std::string& op, const std::string& variant,
                  const std::function<OperatorRun(DType dtype, std::int64_t n)>& prepare,
                  Passes passes = Passes::both);

/// Which cases there are; an empty list takes all.
struct CaseChoice {
  std::vector<std::string> ops;          // "act", without variants
  std::vector<std::string> passes;       // fwd, bwd
  std::vector<std::string> dtypes;       // f32, bf16, f16
  std::vector<std::int64_t> sizes{256};  // n
  bool references = true;                // rows .../reference
  Device device;
};

/// Registers a case for every operator, pass, dtype and n of the choice with Google Benchmark. A
/// case that would hold more memory than the machine has at hand is an error when it is run.
void register_cases(const CaseChoice& choice);
/// The operators that were added, sorted.
std::vector<std::string> operator_names();

/// Where the cases run.
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
