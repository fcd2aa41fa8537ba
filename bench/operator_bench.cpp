#include "operator_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "limits.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/devices.h"
#include "quipu/core/memory/memory.h"

namespace quipu::bench {
namespace {

constexpr DType dtypes[] = {f32, bf16, f16};

/// The least time that the machine could take, by the copies and multiply-adds that it can do.
double least_seconds(const Work& work, DType dtype) {
  static const double bandwidth = copy_bandwidth(16 << 20);
  static const double peak_f32 = multiply_add_peak(f32), peak_f64 = multiply_add_peak(f64);
  return std::max(work.bytes / bandwidth, work.flops / (dtype == f64 ? peak_f64 : peak_f32));
}

/// Times `call` and sets the counters. The peak counts what lives beyond `held_before`.
template <class Call>
void measure(benchmark::State& state, const Work& work, DType dtype, std::size_t held_before,
             Call call) {
  call();  // the blocks that it needs are cached from here on
  const Device device = bench_device();
  const PeakMemory peak(device);
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    call();
    synchronize(device);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double calls = static_cast<double>(state.iterations()) / elapsed.count();
  state.counters["bytes/s"] = work.bytes * calls;
  state.counters["flop/s"] = work.flops * calls;
  if (device.is_cpu()) state.counters["of_limit"] = least_seconds(work, dtype) * calls;
  state.counters["peak_MiB"] = static_cast<double>(peak.bytes() - held_before) / (1 << 20);
}

void run_forward(benchmark::State& state, const OperatorRun& run, std::size_t held_before) {
  const DType dtype = run.inputs[0].dtype();
  measure(state, run.forward, dtype, held_before,
          [&] { benchmark::DoNotOptimize(run.call(run.inputs).view().data); });
}

void run_backward(benchmark::State& state, const OperatorRun& run, std::size_t held_before) {
  for (const Tensor& x : run.inputs) x.set_requires_grad();
  Tape tape;
  const Tensor o = run.call(run.inputs);
  const Tensor d_o = normal(o.shape(), o.dtype());
  measure(state, run.backward, o.dtype(), held_before, [&] { tape.backward(o, {d_o, true}); });
}

std::vector<std::int64_t> token_counts() {
  const char* list = std::getenv("QUIPU_BENCH_N");
  std::istringstream text(list ? list : "256");
  std::vector<std::int64_t> counts;
  for (std::string n; std::getline(text, n, ',');) counts.push_back(std::stoll(n));
  return counts;
}

}  // namespace

void add_operator(const std::string& op, const std::string& variant,
                  const std::function<OperatorRun(DType, std::int64_t)>& prepare, Passes passes) {
  const std::string full_name = variant.empty() ? op : op + "/" + variant;
  const auto add = [&](const char* pass, auto run, DType dtype, std::int64_t n) {
    const std::string name = full_name + "/" + pass + "/" + name_of(dtype) +
                             "/n:" + std::to_string(n) + "/" + name_of(bench_device().kind());
    const auto timed = [=](benchmark::State& state) {
      const std::size_t held_before = memory_stats(bench_device()).current;
      run(state, prepare(dtype, n), held_before);
    };
    benchmark::RegisterBenchmark(name.c_str(), timed)->Unit(benchmark::kMillisecond);
  };
  for (const DType dtype : dtypes) {
    for (const std::int64_t n : token_counts()) {
      add("fwd", run_forward, dtype, n);
      if (passes == Passes::both) add("bwd", run_backward, dtype, n);
    }
  }
}

Device bench_device() {
  const char* name = std::getenv("QUIPU_BENCH_DEVICE");
  return name != nullptr && *name != '\0' ? Device(name) : cpu;
}

Tensor normal(const Shape& shape, DType dtype) {
  return randn(shape, f32, bench_device()).to(dtype);
}

}  // namespace quipu::bench
