// Updates of parameters: one large tensor, where memory is the bound, and many small ones, where
// the calls are. `bytes/s` counts what an update must read and write; `of_copy` compares it with
// copies.
#include <benchmark/benchmark.h>
#include <quipu/quipu.h>

#include <chrono>
#include <functional>

#include "limits.h"

namespace {

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::bench;

using Step = std::function<void(std::span<const ParameterUpdate>)>;

struct Kind {
  const char* name;
  int states;
  Step step;
};

const Kind kinds[] = {
    {"sgd", 0, [](auto list) { sgd_update(list, {}); }},
    {"sgd_momentum", 1, [](auto list) { sgd_update(list, {.momentum = 0.9}); }},
    {"adamw", 2, [](auto list) { adamw_update(list, {}); }},
    {"lion", 1, [](auto list) { lion_update(list, {}); }},
};

std::vector<ParameterUpdate> make_list(std::int64_t tensors, std::int64_t size, DType dtype) {
  std::vector<ParameterUpdate> list;
  for (std::int64_t i = 0; i < tensors; ++i) {
    ParameterUpdate u{.parameter = randn({size}).to(dtype),
                      .gradient = randn({size}).to(dtype),
                      .first = zeros({size}),
                      .second = zeros({size}),
                      .step = zeros({}, i64)};
    if (is_reduced(dtype)) u.master = u.parameter.to(f32);
    list.push_back(u);
  }
  return list;
}

/// Gradient and memory are read, memory and parameter written; the parameter or its master is read,
/// and a master written, too.
double bytes_an_element(DType dtype, int states) {
  const auto own = static_cast<double>(size_of(dtype));
  return 2 * own + (is_reduced(dtype) ? 8 : own) + 8 * states;
}

void measure(benchmark::State& state, double bytes, const std::function<void()>& call) {
  call();
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) call();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double rate = bytes * static_cast<double>(state.iterations()) / elapsed.count();
  state.counters["bytes/s"] = rate;
  state.counters["of_copy"] = rate / copy_limit();
}

void add(const std::string& name, const std::function<void(benchmark::State&)>& run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMillisecond)->UseRealTime();
}

const bool registered = [] {
  struct Size {
    const char* name;
    std::int64_t tensors, size;
  };
  for (const Size& s : {Size{"large", 1, 1 << 24}, Size{"small", 400, 1000}}) {
    for (const DType dtype : {f32, bf16}) {
      const std::string end = std::string("/") + s.name + "/" + name_of(dtype) + "/cpu";
      const auto elements = static_cast<double>(s.tensors * s.size);
      for (const Kind& kind : kinds) {
        add(std::string("update/") + kind.name + end, [=](benchmark::State& state) {
          const auto list = make_list(s.tensors, s.size, dtype);
          measure(state, elements * bytes_an_element(dtype, kind.states), [&] { kind.step(list); });
        });
      }
      add("global_norm" + end, [=](benchmark::State& state) {
        std::vector<Tensor> list;
        for (const auto& u : make_list(s.tensors, s.size, dtype)) list.push_back(u.gradient);
        measure(state, elements * static_cast<double>(size_of(dtype)),
                [&] { benchmark::DoNotOptimize(global_norm(list).view().data); });
      });
    }
  }
  // What a step with clipping costs a training loop with many small parameters.
  add("optimizer/adamw_clipped/small/f32/cpu", [](benchmark::State& state) {
    NamedTensors parameters;
    for (int i = 0; i < 400; ++i) {
      const Tensor p = randn({1000}).set_requires_grad();
      p.set_grad(randn({1000}));
      parameters.emplace_back("p" + std::to_string(i), p);
    }
    nn::AdamW optimizer(parameters);
    measure(state, 400e3 * 32, [&] { optimizer.step({.max_norm = 1}); });
  });
  return true;
}();

}  // namespace
