// The general operators, each beside what bounds it: `of_copy` is the share of the bandwidth of a
// plain copy, `of_peak` the share of the multiply-add peak, both measured in this run on the same
// threads (QUIPU_NUM_THREADS). Time and rates are by the clock on the wall. The first input of a
// pointwise case has 16 MiB. A case's name is also its filter:
//   quipu-bench --benchmark_filter='^matmul/f32'
#include <benchmark/benchmark.h>
#include <quipu/quipu.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>

#include "limits.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

constexpr std::int64_t tensor_bytes = 16 << 20;
constexpr std::int64_t side = 2048;  // side * side f32 are tensor_bytes

/// What one call moves and computes, as the operator needs it and not as a kernel happens to do it.
struct Work {
  double bytes = 0;
  double flops = 0;
  DType dtype = f32;  // of the flops
};

void set_counters(benchmark::State& state, const Work& work, double seconds) {
  const double calls = static_cast<double>(state.iterations()) / seconds;
  if (work.bytes > 0) {
    state.counters["bytes/s"] = work.bytes * calls;
    state.counters["of_copy"] = work.bytes * calls / bench::copy_limit();
  }
  if (work.flops > 0) {
    state.counters["flop/s"] = work.flops * calls;
    state.counters["of_peak"] = work.flops * calls / bench::peak_limit(work.dtype);
  }
}

using Call = std::function<Tensor()>;

/// `prepare` makes inputs when the case is run, and returns the call to time. Several sets take
/// turns, as for the copy, so that what is bound by memory comes from there and not from a cache.
void add_case(const std::string& name, const Work& work, const std::function<Call()>& prepare) {
  const auto run = [=](benchmark::State& state) {
    std::array<Call, bench::copies_in_turn> calls;
    std::array<Tensor, bench::copies_in_turn> outputs;
    const std::size_t turns = work.flops > 0 ? 1 : calls.size();
    for (std::size_t i = 0; i < turns; ++i) {
      calls[i] = prepare();
      outputs[i] = calls[i]();
    }
    std::size_t turn = 0;
    const auto start = std::chrono::steady_clock::now();
    for (auto _ : state) {
      outputs[turn] = Tensor();
      outputs[turn] = calls[turn]();
      turn = (turn + 1) % turns;
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    set_counters(state, work, elapsed.count());
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMicrosecond);
}

std::int64_t count_of(DType dtype) {
  return tensor_bytes / static_cast<std::int64_t>(size_of(dtype));
}

/// A case over tensors of `count_of(dtype)` elements that moves `bytes_per_element`.
void add_pointwise(const std::string& op, DType dtype, std::size_t bytes_per_element,
                   const std::function<Call()>& prepare) {
  const std::int64_t n = count_of(dtype);
  const std::string name = op + "/" + name_of(dtype) + "/n:" + std::to_string(n) + "/cpu";
  add_case(name, {static_cast<double>(bytes_per_element) * static_cast<double>(n)}, prepare);
}

/// Numbers around 1, where every function is smooth and none is at its fast exits.
Tensor input(const Shape& shape, DType dtype) {
  return (rand(shape) + 0.5).to(dtype);
}
Tensor input(DType dtype) {
  return input({count_of(dtype)}, dtype);
}

void add_binary(const char* op, DType dtype, Tensor (*f)(const Term&, const Term&)) {
  add_pointwise(op, dtype, 3 * size_of(dtype),
                [=] { return [f, a = input(dtype), b = input(dtype)] { return f(a, b); }; });
}

void add_unary(const char* op, DType dtype, Tensor (*f)(const Tensor&)) {
  add_pointwise(op, dtype, 2 * size_of(dtype),
                [=] { return [f, x = input(dtype)] { return f(x); }; });
}

void add_cast(DType from, DType to) {
  add_pointwise(std::string("to_") + name_of(to), from, size_of(from) + size_of(to),
                [=] { return [to, x = input(from)] { return x.to(to); }; });
}

void add_arithmetic() {
  for (const DType dtype : {f32, f64, bf16}) {
    add_binary("add", dtype, add);
    add_binary("mul", dtype, mul);
  }
  add_pointwise("where", f32, 13, [] {
    return [c = rand({count_of(f32)}) < 0.5, a = input(f32), b = input(f32)] {
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

void add_reductions() {
  const auto whole = [](const char* op, Tensor (*f)(const Tensor&)) {
    add_pointwise(op, f32, 4, [=] { return [f, x = input(f32)] { return f(x); }; });
  };
  whole("sum", [](const Tensor& x) { return sum(x); });
  whole("mean", [](const Tensor& x) { return mean(x); });
  whole("max", [](const Tensor& x) { return max(x); });
  for (const int dim : {0, 1}) {
    add_case("sum_dim" + std::to_string(dim) + "/f32/2048x2048/cpu", {tensor_bytes}, [=] {
      return [dim, x = input({side, side}, f32)] { return sum(x, dim); };
    });
  }
}

void add_matmul(DType dtype, std::int64_t n) {
  const double size = static_cast<double>(n);
  const std::string name =
      std::string("matmul/") + name_of(dtype) + "/n:" + std::to_string(n) + "/cpu";
  add_case(name, {0, 2 * size * size * size, compute_type(dtype)}, [=] {
    return [a = input({n, n}, dtype), b = input({n, n}, dtype)] { return matmul(a, b); };
  });
}

/// (m, k) times (k, n) with k much longer than the others, as gradients of narrow layers are.
void add_long_sums(DType dtype, std::int64_t m, std::int64_t k, std::int64_t n) {
  const auto bytes =
      static_cast<double>((m * k + k * n) * static_cast<std::int64_t>(size_of(dtype)));
  const std::string name = std::string("matmul_long_sums/") + name_of(dtype) + "/" +
                           std::to_string(m) + "x" + std::to_string(k) + "x" + std::to_string(n) +
                           "/cpu";
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  add_case(name, {bytes, flops, compute_type(dtype)}, [=] {
    return [a = input({k, m}, dtype), b = input({k, n}, dtype)] { return matmul(a.t(), b); };
  });
}

/// `linear` of a few rows, as decoding has it: the weight is read once.
void add_few_rows(DType dtype, std::int64_t rows) {
  const std::int64_t in = 768, out = 3072;
  const auto elements = static_cast<double>(rows * in + out * in + rows * out);
  const std::string name =
      std::string("linear_rows/") + name_of(dtype) + "/n:" + std::to_string(rows) + "/cpu";
  add_case(name, {elements * static_cast<double>(size_of(dtype))}, [=] {
    return [x = input({rows, in}, dtype), w = input({out, in}, dtype)] {
      return linear(x, w, Tensor());
    };
  });
}

void add_indexing() {
  add_case("gather/f32/2048x2048/cpu", {4 * tensor_bytes}, [] {
    return [x = input({side, side}, f32), index = randint(0, side, {side, side})] {
      return gather(x, 1, index);
    };
  });
  add_case("index_select/f32/rows:8192/width:512/cpu", {2 * tensor_bytes}, [] {
    return [x = input({50000, 512}, f32), index = randint(0, 50000, {8192})] {
      return index_select(x, 0, index);
    };
  });
}

const bool registered = [] {
  add_arithmetic();
  add_reductions();
  add_transcendental();
  add_matmul(f32, 128);
  add_matmul(f32, 512);
  add_matmul(f32, 1024);
  add_matmul(bf16, 512);
  add_matmul(f64, 512);
  add_long_sums(f32, 64, 65536, 64);
  for (const DType dtype : {f32, bf16}) {
    for (const std::int64_t rows : {1, 8}) add_few_rows(dtype, rows);
  }
  add_indexing();
  return true;
}();

}  // namespace
