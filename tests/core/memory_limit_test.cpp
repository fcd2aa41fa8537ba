// What happens when memory runs out: by a limit, or because the system has no more.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "quipu/core/memory/allocator.h"
#include "quipu/core/tensor.h"
#include "support/memory_model.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

/// Puts the limit back when it goes.
class Limit {
 public:
  Limit(Device device, std::size_t bytes)
      : device_(device), old_(set_memory_limit(device, bytes)) {}
  ~Limit() { set_memory_limit(device_, old_); }

 private:
  Device device_;
  std::size_t old_;
};

/// A system with little memory; addresses only.
class SmallSource final : public MemorySource {
 public:
  SmallSource(std::size_t capacity, int& calls) : left_(capacity), calls_(calls) {}
  ~SmallSource() override { CHECK(taken_.empty()); }
  void* acquire(std::size_t bytes) override {
    ++calls_;
    if (bytes > left_) return nullptr;
    left_ -= bytes;
    next_ += bytes;
    void* data = reinterpret_cast<void*>(next_ - bytes);  // NOLINT: never read
    taken_[data] = bytes;
    return data;
  }
  void release(void* data, std::size_t bytes) noexcept override {
    CHECK(taken_.at(data) == bytes);
    taken_.erase(data);
    left_ += bytes;
  }
  void fill(void*, std::size_t, unsigned char) override {}

 private:
  std::size_t left_;
  int& calls_;
  std::uintptr_t next_ = 2 * mib;
  std::map<void*, std::size_t> taken_;
};

}  // namespace

TEST_CASE("memory limit: live bytes may reach it and not more") {
  for (const Device device : {cpu, Device("meta:cpu")}) {
    const std::size_t before = memory_stats(device).current;
    const Limit limit(device, before + 10 * 512);
    CHECK(memory_stats(device).limit == before + 10 * 512);
    const auto most = block(9 * 512, device);
    CHECK_THROWS_AS(block(513, device), OutOfMemory);
    const auto last = block(512, device);
    CHECK_THROWS_AS(block(1, device), OutOfMemory);
    CHECK(memory_stats(device).current == before + 10 * 512);
    CHECK_NOTHROW(block(0, device));
  }
}

TEST_CASE("memory limit: the old one is returned") {
  const std::size_t old = set_memory_limit("meta:cpu", 12345);
  CHECK(set_memory_limit("meta:cpu", 0) == 12345);
  set_memory_limit("meta:cpu", old);
}

TEST_CASE("memory limit: the error says who holds what, and what would help") {
  const Device meta("meta:cpu");
  release_cached(meta);
  std::vector<Tensor> held;
  const MemoryScope model("model");
  for (int i = 0; i < 12; ++i) {
    const MemoryScope layer("layer" + std::to_string(i));
    held.push_back(zeros({(i + 1) * 1024}, f32, meta));
  }
  for (const Tensor& x : held) x.storage().hold_for_backward();
  const Limit limit(meta, memory_stats(meta).current + 1024);
  const auto attempt = [&] { return ones({1000}, f32, meta); };
  expect_error<OutOfMemory>(
      attempt, "ones: out of memory on meta:cpu: 3.91 KiB asked for", "Live 312.0 KiB",
      "cached and free 1.70 MiB", "reserved 2.00 MiB", "limit 313.0 KiB (1.00 KiB left)",
      "48.0 KiB", "saved", "zeros", "model/layer11", "model/layer2 ", "12.0 KiB  in 2 more",
      "What would help: a smaller batch, half as large (about 156.0 KiB less)",
      "bf16 instead of f32 (about 156.0 KiB less)", "set_memory_limit()");
  try {
    attempt();
  } catch (const OutOfMemory& e) {
    CHECK(e.requested == 4000);
    CHECK(std::string(e.what()).find("layer1 ") == std::string::npos);  // the eleventh
  }
  for (const Tensor& x : held) x.storage().let_go();
}

TEST_CASE("memory limit: a failed request changes nothing") {
  const Device device = cpu;
  const Tensor x = ones({1000}, f32, device);
  const MemoryStats before = memory_stats(device);
  {
    const Limit limit(device, before.current + 1024);
    CHECK_THROWS_AS(zeros({1000}, f32, device), OutOfMemory);
    CHECK_THROWS_AS(zeros({std::int64_t{1} << 50}, f32, device), OutOfMemory);
    const MemoryStats after = memory_stats(device);
    CHECK(after.current == before.current);
    CHECK(after.live_blocks == before.live_blocks);
    CHECK(after.allocations == before.allocations);
    CHECK(after.by_category == before.by_category);
    CHECK(zeros({256}, f32, device)[255].item() == 0);  // what fits still works
  }
  CHECK(zeros({1000}, f32, device)[999].item() == 0);
  CHECK(x[999].item() == 1);
}

TEST_CASE("memory limit: cached segments make room before the limit is passed") {
  const Device meta("meta:cpu");
  release_cached(meta);
  const std::size_t base = memory_stats(meta).current;
  const Limit limit(meta, base + 32 * mib);
  for (const std::size_t size : {10u, 14u, 18u, 22u, 26u, 30u}) {
    block(size * mib);
    CHECK(memory_stats(meta).reserved <= base + 32 * mib);
  }
}

TEST_CASE("memory limit: when the system has no more, the cache is given back first") {
  int calls = 0;
  CachingAllocator allocator(cpu, std::make_unique<SmallSource>(20 * mib, calls));
  allocator.free(allocator.allocate(12 * mib, Category::output));
  CHECK(allocator.stats().reserved == 12 * mib);
  Block* const large = allocator.allocate(16 * mib, Category::output);
  CHECK(calls == 3);  // the second attempt failed, the third found the first segment free again
  CHECK(allocator.stats().reserved == 16 * mib);
  const std::string message =
      *thrown_message<OutOfMemory>([&] { allocator.allocate(5 * mib, Category::output); });
  CHECK(message.find("5.00 MiB asked for, and the system has no more") != std::string::npos);
  CHECK(message.find("set_memory_limit") == std::string::npos);    // there is none to raise
  Block* const small = allocator.allocate(100, Category::output);  // a slab still fits
  CHECK(allocator.stats().current == 16 * mib + 512);
  allocator.free(large);
  allocator.free(small);
  allocator.release_cached();
  CHECK(allocator.stats().reserved == 0);
}

TEST_CASE("memory limit: a small request is named as asked for, not as the slab that it needs") {
  int calls = 0;
  CachingAllocator allocator(cpu, std::make_unique<SmallSource>(mib, calls));
  try {
    allocator.allocate(100, Category::output);
    FAIL("there is no room for a slab");
  } catch (const OutOfMemory& e) {
    CHECK(e.requested == 100);
    CHECK(std::string(e.what()).find("100 B asked for") != std::string::npos);
  }
  CHECK(allocator.stats().live_blocks == 0);
}

TEST_CASE("memory limit: sizes beyond any device are refused, not wrapped") {
  expect_error<OutOfMemory>([] { return block(~std::size_t{0}); }, "16.0 EiB asked for");
  expect_error<OutOfMemory>([] { return block(std::size_t{1} << 63); }, "8.00 EiB");
  expect_error<OutOfMemory>([] { return empty({std::int64_t{1} << 59}, f64, "meta:cpu"); },
                            "4.00 EiB");
}
