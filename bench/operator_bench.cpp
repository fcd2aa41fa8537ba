#include "operator_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>

#include "limits.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/devices.h"
#include "quipu/core/kernel_modes.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/report/device_timing.h"

namespace quipu::bench {
using detail::TimeMark;
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
  TimeMark start(device), end(device);
  std::int64_t ns = 0;
  for (auto _ : state) {
    start.set();
    call();
    end.set();
    ns += end.ns_since(start);
  }
  const double calls = static_cast<double>(state.iterations()) / (static_cast<double>(ns) * 1e-9);
  if (!device.is_cpu()) state.counters["device_us"] = 1e6 / calls;
  state.counters["bytes/s"] = work.bytes * calls;
  state.counters["flop/s"] = work.flops * calls;
  if (device.is_cpu()) state.counters["of_limit"] = least_seconds(work, dtype) * calls;
  state.counters["peak_MiB"] = static_cast<double>(peak.bytes() - held_before) / (1 << 20);
}

/// Times the plain formula, and says how many times faster the best of some fast calls is.
template <class Call>
void measure_reference(benchmark::State& state, Call call) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const auto seconds = [&] {
    const auto start = Clock::now();
    call();
    synchronize(bench_device());
    return Seconds(Clock::now() - start).count();
  };
  double fast = seconds();
  for (int i = 0; i < 5; ++i) fast = std::min(fast, seconds());
  const ReferenceKernels reference;
  double plain = 0;
  for (auto _ : state) plain += seconds();
  state.counters["fast_is_times"] = plain / static_cast<double>(state.iterations()) / fast;
}

template <class Measure>
void run_forward(const OperatorRun& run, Measure measure_call) {
  measure_call(run.forward, run.inputs[0].dtype(),
               [&] { benchmark::DoNotOptimize(run.call(run.inputs).view().data); });
}

template <class Measure>
void run_backward(const OperatorRun& run, Measure measure_call) {
  for (const Tensor& x : run.inputs) x.set_requires_grad();
  Tape tape;
  const Tensor o = run.call(run.inputs);
  const Tensor d_o = normal(o.shape(), o.dtype());
  measure_call(run.backward, o.dtype(), [&] { tape.backward(o, {d_o, true}); });
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
  const bool plain = !op.ends_with("_composed");  // the formula of a composition is another one
  const auto add = [&](const std::string& pass, auto run, DType dtype, std::int64_t n) {
    const std::string name =
        full_name + "/" + pass + "/" + name_of(dtype) + "/n:" + std::to_string(n) + "/";
    const auto timed = [=](benchmark::State& state) {
      const std::size_t held_before = memory_stats(bench_device()).current;
      run(prepare(dtype, n), [&](const Work& work, DType type, auto call) {
        measure(state, work, type, held_before, call);
      });
    };
    benchmark::RegisterBenchmark((name + name_of(bench_device().kind())).c_str(), timed)
        ->Unit(benchmark::kMillisecond);
    if (!plain || dtype != f32) return;
    const auto timed_reference = [=](benchmark::State& state) {
      run(prepare(dtype, n),
          [&](const Work&, DType, auto call) { measure_reference(state, call); });
    };
    benchmark::RegisterBenchmark((name + "reference").c_str(), timed_reference)
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1)
        ->Repetitions(1);
  };
  for (const DType dtype : dtypes) {
    for (const std::int64_t n : token_counts()) {
      add(
          "fwd", [](const auto&... a) { run_forward(a...); }, dtype, n);
      if (passes == Passes::both) {
        add(
            "bwd", [](const auto&... a) { run_backward(a...); }, dtype, n);
      }
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
