// The allocator and its ledger, rule by rule. memory_stress_test.cpp tries them all at once.
#include "quipu/core/memory/memory.h"

#include <random>
#include <vector>

#include "quipu/autograd/tape.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/reduce/reduce.h"
#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

/// A device of which nothing is live or cached when a test begins.
class EmptyMeta {
 public:
  EmptyMeta() {
    release_cached(device);
    REQUIRE(memory_stats(device).reserved == 0);
  }
  Device device = "meta:cpu";
  MemoryStats stats() const { return memory_stats(device); }
  std::size_t held(Category c) const { return stats().by_category[static_cast<std::size_t>(c)]; }
};

}  // namespace

TEST_CASE_FIXTURE(EmptyMeta, "memory: requests are counted rounded up to 512, and as asked for") {
  const auto one = block(1), exact = block(512), more = block(513);
  CHECK(stats().current == 512 + 512 + 1024);
  CHECK(stats().requested == 1 + 512 + 513);
  CHECK(stats().live_blocks == 3);
  CHECK(stats().reserved == 2 * mib);
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: zero bytes need no block") {
  const auto nothing = block(0);
  CHECK(nothing->data() == nullptr);
  CHECK(stats().current == 0);
  CHECK(stats().live_blocks == 0);
  CHECK(stats().reserved == 0);
  nothing->set_category(Category::parameter);  // no block to label, no harm
  CHECK(held(Category::parameter) == 0);
}

TEST_CASE("memory: a freed block is used again") {
  for (const std::size_t bytes : {std::size_t{1000}, 64 * mib}) {
    void* const first = block(bytes, cpu)->data();
    const std::size_t reserved = memory_stats().reserved;
    const auto again = block(bytes, cpu);
    CHECK(again->data() == first);
    CHECK(memory_stats().reserved == reserved);
  }
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: release_cached gives back all that is not in use") {
  {
    const auto small = block(5000), large = block(5 * mib), larger = block(20 * mib);
    CHECK(stats().reserved == (2 + 6 + 20) * mib);
    release_cached(device);
    CHECK(stats().reserved == (2 + 6 + 20) * mib);
  }
  const auto small = block(5000);
  CHECK(stats().reserved == (2 + 6 + 20) * mib);
  release_cached();  // of all devices
  CHECK(stats().reserved == 2 * mib);
  CHECK(memory_stats().reserved >= memory_stats().current);
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: small blocks merge back into their slab") {
  std::vector<Ref<Storage>> blocks;
  while (stats().reserved <= 8 * mib) blocks.push_back(block(512 * (1 + blocks.size() % 37)));
  blocks.pop_back();
  release_cached(device);
  REQUIRE(stats().reserved == 8 * mib);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(5));
  blocks.clear();
  for (int i = 0; i < 8; ++i) blocks.push_back(block(mib));  // only fits if all pieces merged
  CHECK(stats().reserved == 8 * mib);
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: large blocks are split and merge again") {
  block(40 * mib);
  std::vector<Ref<Storage>> parts;
  for (const std::size_t size : {10u, 5u, 20u, 5u}) parts.push_back(block(size * mib));
  CHECK(stats().reserved == 40 * mib);
  parts.erase(parts.begin() + 1);
  parts.erase(parts.begin() + 1);  // 5 and 20 lie side by side
  parts.push_back(block(25 * mib));
  CHECK(stats().reserved == 40 * mib);
  parts.clear();
  block(40 * mib);
  CHECK(stats().reserved == 40 * mib);
}

TEST_CASE_FIXTURE(EmptyMeta,
                  "memory: a loop that repeats itself reserves nothing after its first turn") {
  std::size_t after_first = 0;
  for (int turn = 0; turn < 20; ++turn) {
    std::mt19937 random(9);
    std::vector<Ref<Storage>> live;
    for (int i = 0; i < 200; ++i) {
      if (live.size() > 20)
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(random() % live.size()));
      live.push_back(block(1 + random() % (i % 2 ? 4 * mib : 40000)));
    }
    live.clear();
    if (turn == 1) after_first = stats().reserved;  // the second turn finds whole segments
    if (turn > 1) CHECK(stats().reserved == after_first);
  }
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: sizes that vary or rise do not pile up segments") {
  reset_peak(device);
  std::mt19937 random(4);
  std::vector<Ref<Storage>> live(16);
  std::size_t most = 0;
  for (int i = 0; i < 5000; ++i) {
    live[random() % live.size()] = block(1 + random() % (8 * mib));
    most = std::max(most, stats().reserved);
  }
  CHECK(most <= 2 * stats().peak);
  live.clear();
  release_cached(device);
  for (std::size_t size = mib; size < 64 * mib; size += mib / 2) {
    block(size);  // as a cache that grows by a row a step
    CHECK(stats().reserved <= 2 * size + 6 * mib);
  }
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: categories follow the tape and the parameters") {
  const Tensor w = ones({1000}, f32, device), x = ones({3000}, f32, device);
  CHECK(held(Category::output) == 4096 + 12288);
  w.set_requires_grad();
  CHECK(held(Category::parameter) == 4096);
  {
    Tape tape;
    const Tensor loss =
        sum(w * x[0]) + sum(x * x);  // the second part has no gradient, so saves nothing
    CHECK(held(Category::parameter) == 4096);
    CHECK(held(Category::saved) == 12288);
    tape.backward(loss);
    CHECK(held(Category::saved) == 0);
    CHECK(held(Category::gradient) == 4096);
  }
  CHECK(held(Category::output) == 12288);
  w.zero_grad();
  CHECK(held(Category::gradient) == 0);
  w.set_requires_grad(false);
  CHECK(held(Category::parameter) == 0);
  CHECK(held(Category::output) == 4096 + 12288);
}

TEST_CASE_FIXTURE(EmptyMeta, "memory: a report names operators and scopes, largest first") {
  const MemoryScope model("model");
  const Tensor a = zeros({1000}, f32, device);
  Tensor b, c;
  {
    const MemoryScope layer("layer3");
    b = ones({100000}, f32, device);
    c = ones({100000}, f32, device);
  }
  const MemoryReport report = memory_report(device);
  REQUIRE(report.holders.size() == 2);
  CHECK(report.holders[0].op == "ones");
  CHECK(report.holders[0].scope == "model/layer3");
  CHECK(report.holders[0].blocks == 2);
  CHECK(report.holders[0].bytes == 2 * 400384);
  CHECK(report.holders[0].oldest_seconds >= 0);
  CHECK(report.holders[1].op == "zeros");
  CHECK(report.holders[1].scope == "model");
  const std::string text = report.text();
  for (const char* part :
       {"memory on meta:cpu now: 786.0 KiB live, 2.00 MiB reserved", "output", "100.0 %",
        "782.0 KiB", "ones", "model/layer3", "2 blocks", "zeros", "1 block\n"}) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  }
  CHECK(report.text(1).find("in 1 more") != std::string::npos);
}

TEST_CASE("memory: sizes for people") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(10 * 1024 + 512) == "10.5 KiB");
  CHECK(human_bytes(5 * mib / 2) == "2.50 MiB");
  CHECK(human_bytes(std::size_t{80} << 30) == "80.0 GiB");
  CHECK(human_bytes(~std::size_t{0}) == "16.0 EiB");
}
