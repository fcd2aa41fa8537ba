// The devices' allocators: where their memory comes from, and the calls of memory.h.
#include "quipu/core/memory/memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/error.h"
#include "quipu/core/memory/allocator.h"
#include "quipu/core/memory/allocator_modes.h"
#include "quipu/core/threads/fork.h"

#if defined(__SANITIZE_ADDRESS__)
#define QUIPU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define QUIPU_ASAN 1
#endif
#endif
#ifdef QUIPU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace quipu {
using namespace detail;
namespace {

/// Main memory. Large segments are aligned for huge pages: a fresh 16 MiB tensor then costs 8 page
/// faults, not 4096.
class HostSource final : public MemorySource {
 public:
  void* acquire(std::size_t bytes) override {
    const bool large = bytes >= slab_bytes;
    void* data = nullptr;
    if (posix_memalign(&data, large ? slab_bytes : granule, bytes) != 0) return nullptr;
    if (large) madvise(data, bytes, MADV_HUGEPAGE);
    return data;
  }
  void release(void* data, std::size_t bytes) noexcept override {
    poison(data, bytes, false);
    std::free(data);
  }
  void fill(void* data, std::size_t bytes, unsigned char value) override {
    std::memset(data, value, bytes);
  }
  void poison([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes,
              [[maybe_unused]] bool on) noexcept override {
#ifdef QUIPU_ASAN
    if (on) {
      ASAN_POISON_MEMORY_REGION(data, bytes);
    } else {
      ASAN_UNPOISON_MEMORY_REGION(data, bytes);
    }
#endif
  }
};

/// Addresses without memory behind them.
class MetaSource final : public MemorySource {
 public:
  void* acquire(std::size_t bytes) override {
    if (bytes > last - next_) return nullptr;
    next_ += bytes;
    return reinterpret_cast<void*>(next_ - bytes);  // NOLINT: never read
  }
  void release(void*, std::size_t) noexcept override {}
  void fill(void*, std::size_t, unsigned char) override {}

 private:
  static constexpr std::uintptr_t last = std::uintptr_t{1} << 62;
  std::uintptr_t next_ = slab_bytes;
};

bool environment_says(const char* name) {
  const char* value = std::getenv(name);
  return value && *value && std::strcmp(value, "0") != 0;
}

std::atomic<bool>& caching_flag() {
  static std::atomic<bool> on{!environment_says("QUIPU_NO_CACHE")};
  return on;
}
std::atomic<bool>& poison_flag() {
  static std::atomic<bool> on{environment_says("QUIPU_POISON")};
  return on;
}

constexpr std::size_t max_index = Device::max_index;

/// One slot a device, found without a lock. Never destroyed: tensors with static lifetime may still
/// be around.
struct Registry {
  std::mutex mutex;
  std::array<std::atomic<CachingAllocator*>, 4 * max_index> slots{};
  std::array<SourceFactory, 2> factories{};

  void lock_all();
  void unlock_all();
};

/// Another thread may be in an allocator at this moment, which the child of a fork() does not have:
/// locks are held meanwhile, those that are taken under others after them.
void Registry::lock_all() {
  mutex.lock();
  for (auto& slot : slots) {
    if (CachingAllocator* a = slot.load()) a->mutex().lock();
  }
  scopes_mutex().lock();
}

void Registry::unlock_all() {
  scopes_mutex().unlock();
  for (auto& slot : slots) {
    if (CachingAllocator* a = slot.load()) a->mutex().unlock();
  }
  mutex.unlock();
}

Registry& registry() {
  static auto* r = new Registry;
  [[maybe_unused]] static const int at_fork =
      pthread_atfork([] { r->lock_all(); }, [] { r->unlock_all(); }, [] { r->unlock_all(); });
  return *r;
}
std::size_t slot_of(Device d) {
  return ((d.is_meta() ? 2u : 0u) + static_cast<std::size_t>(d.kind())) * max_index +
         static_cast<std::size_t>(d.index());
}

std::unique_ptr<MemorySource> make_source(Device device) {
  if (device.is_meta()) return std::make_unique<MetaSource>();
  if (device.is_cpu()) return std::make_unique<HostSource>();
  ensure_kernels_registered();  // back ends say where memory comes from
  const SourceFactory factory = registry().factories[static_cast<std::size_t>(device.kind())];
  check(factory != nullptr, "device ", device,
        " is not there: this build of quipu has no CUDA back end; configure with -DQUIPU_CUDA=ON, "
        "or use device cpu "
        "(or meta:cuda, which computes nothing)");
  return factory(device.index());
}

}  // namespace

bool detail::caching_mode() {
  return caching_flag().load(std::memory_order_relaxed);
}
bool detail::poison_mode() {
  return poison_flag().load(std::memory_order_relaxed);
}
bool set_caching(bool on) {
  return caching_flag().exchange(on);
}
bool set_poison(bool on) {
  return poison_flag().exchange(on);
}

void detail::set_memory_source(DeviceKind kind, SourceFactory factory) {
  registry().factories[static_cast<std::size_t>(kind)] = factory;
}

CachingAllocator& detail::allocator_of(Device device) {
  Registry& r = registry();
  std::atomic<CachingAllocator*>& slot = r.slots[slot_of(device)];
  if (CachingAllocator* a = slot.load(std::memory_order_acquire)) return *a;
  const std::lock_guard lock(r.mutex);
  if (CachingAllocator* a = slot.load()) return *a;
  static const int at_exit = std::atexit([] { release_cached(); });
  ensure(at_exit == 0, "cannot register the release of cached memory");
  auto* a = new CachingAllocator(device, make_source(device));
  slot.store(a, std::memory_order_release);
  return *a;
}

std::vector<Device> devices_in_use() {
  std::vector<Device> devices;
  Registry& r = registry();
  for (std::size_t i = 0; i < r.slots.size(); ++i) {
    if (!r.slots[i].load()) continue;
    const std::size_t group = i / max_index;
    devices.emplace_back(static_cast<DeviceKind>(group % 2), static_cast<int>(i % max_index),
                         group >= 2);
  }
  return devices;
}

MemoryStats memory_stats(Device device) {
  return allocator_of(device).stats();
}
MemoryReport memory_report(Device device) {
  return allocator_of(device).report_now();
}
MemoryReport peak_report(Device device) {
  return allocator_of(device).report_peak();
}
void reset_peak(Device device) {
  allocator_of(device).reset_peak();
}
std::size_t set_memory_limit(Device device, std::size_t bytes) {
  return allocator_of(device).set_limit(bytes);
}
void release_cached(Device device) {
  allocator_of(device).release_cached();
}
void release_cached() {
  for (const Device device : devices_in_use()) release_cached(device);
}

PeakMemory::PeakMemory(Device device)
    : device_(device),
      region_(std::make_unique<PeakRegion>()),
      start_(allocator_of(device).enter(region_.get())) {}
PeakMemory::~PeakMemory() {
  allocator_of(device_).leave(region_.get());
}
std::size_t PeakMemory::bytes() const {
  return allocator_of(device_).peak_of(region_.get());
}
std::size_t PeakMemory::bytes_above() const {
  return bytes() - start_;
}
MemoryReport PeakMemory::report() const {
  return allocator_of(device_).report_peak(*region_);
}
void PeakMemory::reset() {
  start_ = allocator_of(device_).restart(region_.get());
}

}  // namespace quipu
