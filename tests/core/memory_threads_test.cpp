#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

void allocate_at_random(Device device, unsigned seed) {
  const MemoryScope scope("thread" + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<Ref<Storage>> live(8);
  for (int i = 0; i < 400; ++i) {
    const PeakMemory peak(device);
    const std::size_t slot = random() % live.size();
    live[slot] = block(1 + random() % (i % 8 ? 20000 : 3 * mib), device);
    live[slot]->hold_for_backward();
    if (device.is_cpu()) *static_cast<char*>(live[slot]->data()) = 1;
    if (i % 64 == 0) static_cast<void>(peak.report());
    if (i % 100 == 0) release_cached(device);
  }
}

}  // namespace

TEST_CASE("memory: scopes nest and belong to their thread") {
  const ScopeId outside = thread_context().scope;
  const MemoryScope a("a");
  {
    const MemoryScope b("b");
    CHECK(scope_path(thread_context().scope) == "a/b");
    std::string seen = "?";
    std::jthread([&] {
      seen = scope_path(thread_context().scope);
      const MemoryScope own("b");
      seen += "," + scope_path(thread_context().scope);
    }).join();
    CHECK(seen == ",b");
    const MemoryScope again(outside);  // enters one that was open before
    CHECK(scope_path(thread_context().scope).empty());
  }
  CHECK(scope_path(thread_context().scope) == "a");
}

TEST_CASE("memory: threads allocate and free at once") {
  for (const Device device : {cpu, Device("meta:cpu")}) {
    const MemoryStats before = memory_stats(device);
    std::vector<std::string> errors(8);
    {
      std::vector<std::jthread> threads;
      for (unsigned t = 0; t < 8; ++t) {
        threads.emplace_back([&errors, device, t] {
          errors[t] =
              thrown_message<std::exception>([&] { allocate_at_random(device, t); }).value_or("");
        });
      }
      for (int i = 0; i < 50; ++i) {
        const MemoryStats stats = memory_stats(device);
        std::size_t sum = 0;
        for (const std::size_t bytes : stats.by_category) sum += bytes;
        CHECK(sum == stats.current);
        CHECK_NOTHROW(peak_report(device));
      }
    }
    CHECK(errors == std::vector<std::string>(8));
    CHECK(memory_stats(device).current == before.current);
    CHECK(memory_stats(device).by_category == before.by_category);
    CHECK(memory_stats(device).allocations == before.allocations + 8 * 400);
  }
}

TEST_CASE("memory: threads save and let go of one tensor at once") {
  const auto shared = block(1000, "meta:cpu");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          shared->hold_for_backward();
          shared->let_go();
        }
      });
    }
  }
  const auto& by_category = memory_stats("meta:cpu").by_category;
  CHECK(by_category[static_cast<std::size_t>(Category::saved)] == 0);
  CHECK(by_category[static_cast<std::size_t>(Category::output)] == 1024);
}
