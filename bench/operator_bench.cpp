#include "operator_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <set>

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

using Prepare = std::function<OperatorRun(DType, std::int64_t)>;

struct Operator {
  std::string op, variant;
  Prepare prepare;
  Passes passes;

  std::string name() const { return variant.empty() ? op : op + "/" + variant; }
};

/// Filled before main begins, by the files of the operators.
std::vector<Operator>& operators() {
  static std::vector<Operator> all;
  return all;
}

Device& device() {
  static Device chosen;
  return chosen;
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
  if (device.is_cpu()) {
    state.counters["of_copy"] = work.bytes * calls / copy_limit();
    state.counters["of_peak"] = work.flops * calls / peak_limit(dtype);
  }
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

/// The bytes that the kernel can give without swapping; no limit where it does not say.
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (std::size_t kib = 0; file >> name >> kib; file.ignore(80, '\n')) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return SIZE_MAX;
}

/// What is missing for a case, or nothing: a dry run on `meta` tells what it would hold.
template <class Run>
std::string memory_missing(const Operator& op, DType dtype, std::int64_t n, Run run) {
  if (!device().is_cpu()) return "";
  release_cached();
  const Device real = device(), meta(real.kind(), 0, true);
  device() = meta;
  const PeakMemory peak(meta);
  run(op.prepare(dtype, n), [](const Work&, DType, auto call) { call(); });
  device() = real;
  const std::size_t available = available_memory() / 10 * 9;  // something for everything else
  if (peak.bytes() < available) return "";
  return "needs " + human_bytes(peak.bytes()) + " of memory, " + human_bytes(available) +
         " are available";
}

/// The inputs of a case are kept for its next run: Google Benchmark calls a case several times, and
/// to draw them takes longer than most cases.
struct Prepared {
  std::string name;
  std::size_t held_before;
  OperatorRun run;
};
std::optional<Prepared>& prepared() {
  static std::optional<Prepared> last;
  return last;
}

template <class Run>
void register_case(const Operator& op, const std::string& pass, Run run, DType dtype,
                   std::int64_t n, bool references) {
  const std::string name =
      op.name() + "/" + pass + "/" + name_of(dtype) + "/n:" + std::to_string(n) + "/";
  const auto timed = [=](benchmark::State& state) {
    if (!prepared() || prepared()->name != name) {
      prepared().reset();
      if (const std::string missing = memory_missing(op, dtype, n, run); !missing.empty()) {
        state.SkipWithError(missing.c_str());
        return;
      }
      const std::size_t held_before = memory_stats(device()).current;
      prepared() = Prepared{name, held_before, op.prepare(dtype, n)};
    }
    run(prepared()->run, [&](const Work& work, DType type, auto call) {
      measure(state, work, type, prepared()->held_before, call);
    });
  };
  benchmark::RegisterBenchmark((name + name_of(device().kind())).c_str(), timed)
      ->Unit(benchmark::kMillisecond);
  // The plain formula of a composition is another one.
  if (!references || dtype != f32 || op.op.ends_with("_composed")) return;
  const auto timed_reference = [=](benchmark::State& state) {
    prepared().reset();
    run(op.prepare(dtype, n),
        [&](const Work&, DType, auto call) { measure_reference(state, call); });
  };
  benchmark::RegisterBenchmark((name + "reference").c_str(), timed_reference)
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1)
      ->Repetitions(1);
}

bool chosen(const std::vector<std::string>& choice, const std::string& value) {
  return choice.empty() || std::find(choice.begin(), choice.end(), value) != choice.end();
}

}  // namespace

void add_operator(const std::string& op, const std::string& variant, const Prepare& prepare,
                  Passes passes) {
  operators().push_back({op, variant, prepare, passes});
}

void register_cases(const CaseChoice& choice) {
  device() = choice.device;
  const auto forward = [](const auto&... a) { run_forward(a...); };
  const auto backward = [](const auto&... a) { run_backward(a...); };
  for (const Operator& op : operators()) {
    if (!chosen(choice.ops, op.op)) continue;
    for (const DType dtype : dtypes) {
      if (!chosen(choice.dtypes, name_of(dtype))) continue;
      for (const std::int64_t n : choice.sizes) {
        if (chosen(choice.passes, "fwd")) {
          register_case(op, "fwd", forward, dtype, n, choice.references);
        }
        if (op.passes == Passes::both && chosen(choice.passes, "bwd")) {
          register_case(op, "bwd", backward, dtype, n, choice.references);
        }
      }
    }
  }
}

std::vector<std::string> operator_names() {
  std::set<std::string> names;
  for (const Operator& op : operators()) names.insert(op.op);
  return {names.begin(), names.end()};
}

Device bench_device() {
  return device();
}

Tensor normal(const Shape& shape, DType dtype) {
  return randn(shape, f32, bench_device()).to(dtype);
}

}  // namespace quipu::bench
