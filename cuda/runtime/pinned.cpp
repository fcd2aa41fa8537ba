#include "pinned.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "event.h"

namespace quipu::detail::on_cuda {

struct PinnedBlock {
  char* data;
  std::size_t bytes;
  std::vector<Event> copies;  // that may still read it
};

namespace {

using BlockPointer = std::shared_ptr<PinnedBlock>;

/// Whether all copies are done. False also where the device has failed: nobody gets the block then.
bool is_idle(PinnedBlock& block) noexcept {
  try {
    std::erase_if(block.copies, [](const Event& copy) { return copy.reached(); });
    return block.copies.empty();
  } catch (const std::exception&) {
    return false;
  }
}

class PinnedMemory final : public MemorySource {
 public:
  void* acquire(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    BlockPointer block = take_kept(bytes);
    if (!block) {
      void* data = nullptr;
      if (cudaHostAlloc(&data, bytes, cudaHostAllocPortable) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return nullptr;
      }
      block = std::make_shared<PinnedBlock>(PinnedBlock{static_cast<char*>(data), bytes, {}});
    }
    live_[block->data] = block;
    return block->data;
  }

  void release(void* data, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<char*>(data));
    kept_.push_back(std::move(found->second));
    kept_bytes_ += bytes;
    live_.erase(found);
  }

  void fill(void* data, std::size_t bytes, unsigned char value) override {
    std::memset(data, value, bytes);
  }

  std::size_t kept_bytes() const override {
    const std::lock_guard lock(mutex_);
    return kept_bytes_;
  }

  /// cudaFreeHost waits for copies that are under way.
  void release_kept() noexcept override {
    const std::lock_guard lock(mutex_);
    for (const BlockPointer& block : kept_) {
      if (cudaFreeHost(block->data) != cudaSuccess) static_cast<void>(cudaGetLastError());
    }
    kept_.clear();
    kept_bytes_ = 0;
  }

  /// Null where the address is in no live block.
  BlockPointer find(const void* address) const {
    const std::lock_guard lock(mutex_);
    const char* at = static_cast<const char*>(address);
    auto after = live_.upper_bound(const_cast<char*>(at));
    if (after == live_.begin()) return nullptr;
    const BlockPointer& block = (--after)->second;
    return std::less<>()(at, block->data + block->bytes) ? block : nullptr;
  }

  void add_copy(PinnedBlock& block, Event copy) {
    const std::lock_guard lock(mutex_);
    std::erase_if(block.copies, [](const Event& other) { return other.reached(); });
    block.copies.push_back(std::move(copy));
  }

 private:
  /// A block of that size that nobody reads any more. If there are many, and all are still read,
  /// the host is far ahead of the device, and waits for the oldest.
  BlockPointer take_kept(std::size_t bytes) {
    constexpr int most_waiting = 8;
    int waiting = 0;
    auto taken = kept_.end(), oldest = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end() && taken == kept_.end(); ++it) {
      if ((*it)->bytes != bytes) continue;
      if (oldest == kept_.end()) oldest = it;
      if (is_idle(**it)) taken = it;
      if (taken == kept_.end() && ++waiting == most_waiting) taken = oldest;
    }
    if (taken == kept_.end()) return nullptr;
    for (const Event& copy : (*taken)->copies) copy.wait();
    BlockPointer block = std::move(*taken);
    block->copies.clear();
    kept_.erase(taken);
    kept_bytes_ -= bytes;
    return block;
  }

  mutable std::mutex mutex_;
  std::map<char*, BlockPointer> live_;
  std::vector<BlockPointer> kept_;  // the oldest first
  std::size_t kept_bytes_ = 0;
};

PinnedMemory& memory() {
  static auto* only = new PinnedMemory;
  return *only;
}

}  // namespace

MemorySource& pinned_memory() {
  return memory();
}

bool is_pinned(const View& on_host) {
  return memory().find(on_host.data) != nullptr;
}

PinnedUse::PinnedUse(const void* address) : block_(memory().find(address)) {}

void PinnedUse::until_done(const Queue& queue) const {
  Event copy;
  copy.record(queue.stream);
  memory().add_copy(*block_, std::move(copy));
}

}  // namespace quipu::detail::on_cuda
