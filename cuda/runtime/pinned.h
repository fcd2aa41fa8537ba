#pragma once
// Pinned host memory for the CPU's allocator: devices copy from it by themselves, while the host
// goes on. A block that was released is kept, and given out again when all copies from it are done.
#include <memory>

#include "quipu/core/memory/allocator.h"
#include "streams.h"

namespace quipu::detail::on_cuda {

/// One for all devices, never destroyed. Calls nothing of CUDA before its first use.
MemorySource& pinned_memory();

bool is_pinned(const View& on_host);

struct PinnedBlock;

/// A copy from the live block that an address lies in.
class PinnedUse {
 public:
  explicit PinnedUse(const void* address);
  /// False if the address lies in none.
  explicit operator bool() const { return block_ != nullptr; }
  /// The block is used until the queue has done what it was given so far.
  void until_done(const Queue& queue) const;

 private:
  std::shared_ptr<PinnedBlock> block_;
};

}  // namespace quipu::detail::on_cuda
