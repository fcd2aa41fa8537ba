// The general operators, each beside what bounds it: `of_copy` is the share of the bandwidth of a
// plain copy, `of_peak` the share of the multiply-add peak, both measured in this run on the same
// threads (QUIPU_NUM_THREADS). A case's name is also its filter:
//   quipu-bench --benchmark_filter='^matmul/f32'
#include <benchmark/benchmark.h>
#include <quipu/quipu.h>

#include <functional>
#include <string>

#include "limits.h"

namespace {

using namespace quipu;
using benchmark::Counter;

constexpr std::int64_t elements = 4 << 20;  // 16 MiB in f32
constexpr std::int64_t side = 2048;         // side * side = elements

/// What one call moves and computes, as the operator needs it and not as a kernel happens to do it.
struct Work {
  double bytes = 0;
  double flops = 0;
  DType dtype = f32;  // of the flops
};

/// A copy of as many bytes as the operators' tensors have, measured once.
double copy_limit() {
  static const double bandwidth = bench::copy_bandwidth(elements * sizeof(float));
  return bandwidth;
}

double peak_limit(DType dtype) {
  static const double single = bench::multiply_add_peak(f32), twice = bench::multiply_add_peak(f64);
  return dtype == f64 ? twice : single;
}

using Call = std::function<Tensor()>;

/// `prepare` makes the inputs when the case is run, and returns the call to time.
void add_case(const std::string& name, const Work& work, std::function<Call()> prepare) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 const Call call = prepare();
                                 call();  // the output's block is cached from here on
                                 for (auto _ : state) benchmark::DoNotOptimize(call().view().data);
                                 const auto rate = [](double amount) {
                                   return Counter(amount, Counter::kIsIterationInvariantRate);
                                 };
                                 if (work.bytes > 0) {
                                   state.counters["bytes"] = rate(work.bytes);
                                   state.counters["of_copy"] = rate(work.bytes / copy_limit());
                                 }
                                 if (work.flops > 0) {
                                   state.counters["flops"] = rate(work.flops);
                                   state.counters["of_peak"] =
                                       rate(work.flops / peak_limit(work.dtype));
                                 }
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

std::string pointwise_name(const char* op, DType dtype, std::int64_t n) {
  return std::string(op) + "/" + name_of(dtype) + "/n:" + std::to_string(n) + "/cpu";
}

Work moves(double bytes_per_element, std::int64_t n = elements) {
  return {bytes_per_element * static_cast<double>(n), 0, f32};
}

/// Tensors are numbers around 1, where every function is smooth and none is at its fast exits.
Tensor input(const Shape& shape, DType dtype) {
  return (rand(shape) + 0.5).to(dtype);
}

void add_unary(const char* op, DType dtype, Tensor (*f)(const Tensor&)) {
  const auto size = static_cast<double>(size_of(dtype));
  add_case(pointwise_name(op, dtype, elements), moves(2 * size),
           [=] { return [f, x = input({elements}, dtype)] { return f(x); }; });
}

void add_binary(const char* op, DType dtype, Tensor (*f)(const Term&, const Term&)) {
  const auto size = static_cast<double>(size_of(dtype));
  add_case(pointwise_name(op, dtype, elements), moves(3 * size), [=] {
    return [f, a = input({elements}, dtype), b = input({elements}, dtype)] { return f(a, b); };
  });
}

void add_cast(DType from, DType to) {
  const std::string name = std::string("cast_to_") + name_of(to);
  const auto bytes = static_cast<double>(size_of(from) + size_of(to));
  add_case(pointwise_name(name.c_str(), from, elements), moves(bytes),
           [=] { return [to, x = input({elements}, from)] { return x.to(to); }; });
}

void add_arithmetic() {
  for (const DType dtype : {f32, f64, bf16}) {
    add_binary("add", dtype, add);
    add_binary("mul", dtype, mul);
  }
  add_case(pointwise_name("where", f32, elements), moves(13), [] {
    return [c = rand({elements}) < 0.5, a = input({elements}, f32), b = input({elements}, f32)] {
      return where(c, a, b);
    };
  });
  add_cast(f32, bf16);
  add_cast(bf16, f32);
  add_cast(f32, f64);
}

void add_transcendental() {
  for (const DType dtype : {f32, f64}) {
    add_unary("exp", dtype, exp);
    add_unary("log", dtype, log);
    add_unary("tanh", dtype, tanh);
    add_unary("sin", dtype, sin);
    add_unary("cos", dtype, cos);
  }
}

void add_reduction(const std::string& name, const Shape& shape, Tensor (*f)(const Tensor&)) {
  add_case(name, moves(4), [=] { return [f, x = input(shape, f32)] { return f(x); }; });
}

void add_reductions() {
  const auto whole = [](const char* op) { return pointwise_name(op, f32, elements); };
  add_reduction(whole("sum"), {elements}, [](const Tensor& x) { return sum(x); });
  add_reduction(whole("mean"), {elements}, [](const Tensor& x) { return mean(x); });
  add_reduction(whole("max"), {elements}, [](const Tensor& x) { return max(x); });
  const Shape square{side, side};
  add_reduction("sum_dim0/f32/2048x2048/cpu", square, [](const Tensor& x) { return sum(x, 0); });
  add_reduction("sum_dim1/f32/2048x2048/cpu", square, [](const Tensor& x) { return sum(x, 1); });
}

void add_matmul(DType dtype, std::int64_t n) {
  const double size = static_cast<double>(n);
  const std::string name =
      std::string("matmul/") + name_of(dtype) + "/n:" + std::to_string(n) + "/cpu";
  add_case(name, {0, 2 * size * size * size, compute_type(dtype)}, [=] {
    return [a = input({n, n}, dtype), b = input({n, n}, dtype)] { return matmul(a, b); };
  });
}

void add_indexing() {
  add_case("gather/f32/2048x2048/cpu", moves(16), [] {
    return [x = input({side, side}, f32), index = randint(0, side, {side, side})] {
      return gather(x, 1, index);
    };
  });
  add_case("index_select/f32/rows:8192/width:512/cpu", moves(8), [] {
    return [x = input({50000, 512}, f32), index = randint(0, 50000, {elements / 512})] {
      return index_select(x, 0, index);
    };
  });
}

const bool registered = [] {
  add_arithmetic();
  add_reductions();
  add_transcendental();
  add_matmul(f32, 512);
  add_matmul(f32, 1024);
  add_matmul(bf16, 512);
  add_matmul(f64, 512);
  add_indexing();
  return true;
}();

}  // namespace
