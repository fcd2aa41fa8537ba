// What an allocation costs when a cached block fits, beside malloc of the same size. Neither
// touches the memory.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "quipu/core/context.h"
#include "quipu/core/memory/storage.h"

namespace {

using namespace quipu;
using namespace quipu::detail;

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgName("bytes")->Arg(1 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20);
}

/// Through Storage, as every tensor does: block, ledger entry, reference count.
void allocate(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const OpScope op("bench");
  for (auto _ : state) {
    const Ref<Storage> storage(new Storage(bytes, cpu, Category::output));
    benchmark::DoNotOptimize(storage->data());
  }
}
BENCHMARK(allocate)->Name("allocate")->Apply(sizes);

void allocate_by_malloc(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* data = std::malloc(bytes);
    benchmark::DoNotOptimize(data);
    std::free(data);
  }
}
BENCHMARK(allocate_by_malloc)->Name("malloc")->Apply(sizes);

}  // namespace
