// See allocator.h for the policy. Everything here runs under the allocator's mutex; a hit in a bin
// touches the block, its neighbour and a few counters.
#include "quipu/core/memory/allocator.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <utility>

#include "quipu/core/error.h"
#include "quipu/core/memory/allocator_modes.h"
#include "quipu/core/report/recording.h"

namespace quipu::detail {
namespace {

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool is_whole_segment(const Block& block) {
  return !block.before && !block.after;
}

constinit thread_local bool pinning = false;
std::atomic<MemorySource*> the_pinned_source{nullptr};

/// Among free blocks of one size the first is taken that nobody has to wait for; so many are looked
/// at.
constexpr int most_looks = 16;

/// Whether a lane can have the block without waiting for another one.
bool is_ready_for(std::uint64_t lane, const Block& block) {
  return (block.lanes & ~lane) == 0;
}

}  // namespace

void set_pinned_source(MemorySource* source) {
  the_pinned_source = source;
}

MemorySource* pinned_source() {
  return the_pinned_source;
}

PinnedScope::PinnedScope() : outer_(std::exchange(pinning, true)) {}
PinnedScope::~PinnedScope() {
  pinning = outer_;
}

CachingAllocator::CachingAllocator(Device device, std::unique_ptr<MemorySource> source)
    : device_(device), source_(std::move(source)) {
  live_.bin_before = live_.bin_after = &live_;
}

Block* CachingAllocator::allocate(std::size_t bytes, Category category, const Shape& shape,
                                  DType dtype) {
  if (bytes == 0) return nullptr;
  const ThreadContext& context = thread_context();
  const std::lock_guard lock(mutex_);
  if (bytes > (std::size_t{1} << 62)) throw_out_of_memory(bytes, "no device has that much");
  const std::size_t size = round_up(bytes, granule);
  if (stats_.limit && stats_.current + size > stats_.limit)
    throw_out_of_memory(bytes, "the limit is reached");

  Block* block = take_pinned(size);
  if (!block) block = find_or_grow(size, bytes);
  MemorySource& source = source_of(*block);
  const std::uint64_t lane = source.lane();
  if (block->lanes & ~lane) source.wait_for(block->lanes & ~lane);
  block->lanes = lane;
  block->owner = this;
  block->live = true;
  block->requested = bytes;
  block->bin_before = &live_;
  block->bin_after = live_.bin_after;
  block->bin_after->bin_before = block;
  live_.bin_after = block;
  block->entry = {size, context.op, context.scope, category, ++serial_, now_ns(), dtype, shape};

  stats_.current += size;
  stats_.requested += bytes;
  stats_.by_category[static_cast<std::size_t>(category)] += size;
  ++stats_.live_blocks;
  ++stats_.allocations;
  note_peak(whole_);
  for (PeakRegion* region : regions_) note_peak(*region);
  if (!logs_.empty()) note(block->entry, -1, static_cast<int>(category), block->entry.since_ns);
  source.opened(block->data, block->size, bytes);
  if (poison_mode()) source.fill(block->data, bytes, 0xff);
  source.poison(block->data + bytes, block->size - bytes, true);
  return block;
}

void CachingAllocator::free(Block* block) noexcept {
  std::unique_lock lock(mutex_);
  if (block->keepers > 0) {
    block->unowned = true;
    return;
  }
  const bool is_last = give_back(block);
  lock.unlock();
  if (is_last) abandon(this);
}

Block* CachingAllocator::keep(const void* data) {
  const std::lock_guard lock(mutex_);
  const auto* at = static_cast<const char*>(data);
  for (Block* block = live_.bin_after; block != &live_; block = block->bin_after) {
    if (at < block->data || at >= block->data + block->size) continue;
    ++block->keepers;
    return block;
  }
  return nullptr;
}

void CachingAllocator::let_go(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  if (--block->keepers == 0 && block->unowned) give_back(block);
}

void CachingAllocator::abandon(CachingAllocator* allocator) noexcept {
  {
    const std::lock_guard lock(allocator->mutex_);
    allocator->abandoned_ = true;
    if (allocator->stats_.live_blocks > 0) return;
    allocator->release_cached_locked();
  }
  delete allocator;
}

/// True if it was the last block of an allocator that nobody needs any more.
bool CachingAllocator::give_back(Block* block) noexcept {
  const LedgerEntry& entry = block->entry;
  ++serial_;
  bury(entry);
  stats_.current -= entry.bytes;
  stats_.requested -= block->requested;
  stats_.by_category[static_cast<std::size_t>(entry.category)] -= entry.bytes;
  --stats_.live_blocks;
  if (!logs_.empty()) note(entry, static_cast<int>(entry.category), -1, now_ns());
  block->bin_before->bin_after = block->bin_after;
  block->bin_after->bin_before = block->bin_before;
  block->live = false;
  block->unowned = false;
  close(block);
  if (block->direct) {
    stats_.reserved -= block->size;
    source_of(*block).release(block->data, block->size);
    recycle(block);
  } else {
    put(merge(block));
  }
  return abandoned_ && stats_.live_blocks == 0;
}

void CachingAllocator::close(Block* block) noexcept {
  MemorySource& source = source_of(*block);
  source.poison(block->data, block->size, false);
  block->lanes |= source.lane();
  try {
    if (poison_mode()) source.fill(block->data, block->requested, 0xff);
    source.closed(block->data, block->lanes);
  } catch (const std::exception&) {
    // The device has failed, and the next call that can throw says so.
  }
}

void CachingAllocator::note_use(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  for (Block* block = live_.bin_after; block != &live_; block = block->bin_after) {
    if (block->data == data) block->lanes |= source_->lane();
  }
}

void CachingAllocator::relabel(Block* block, Category category) noexcept {
  const std::lock_guard lock(mutex_);
  LedgerEntry& entry = block->entry;
  if (entry.category == category) return;
  bury(entry);  // at the peak it still stood under its old label
  stats_.by_category[static_cast<std::size_t>(entry.category)] -= entry.bytes;
  stats_.by_category[static_cast<std::size_t>(category)] += entry.bytes;
  if (!logs_.empty())
    note(entry, static_cast<int>(entry.category), static_cast<int>(category), now_ns());
  entry.category = category;
  entry.born = ++serial_;
}

/// Null where nobody wants it pinned, or there is no such memory.
Block* CachingAllocator::take_pinned(std::size_t size) {
  if (!pinning || !caching_mode() || !device_.is_cpu() || !pinned_source()) return nullptr;
  void* data = pinned_source()->acquire(size);
  if (!data) return nullptr;
  Block* block = new_block();
  stats_.reserved += size;
  block->data = static_cast<char*>(data);
  block->size = size;
  block->direct = true;
  block->source = pinned_source();
  return block;
}

Block* CachingAllocator::find_or_grow(std::size_t size, std::size_t wanted) {
  if (!caching_mode() && !source_->keeps()) {
    Block* block = grow(size, false, wanted);
    block->direct = true;
    return block;
  }
  const bool small = size <= largest_small_block;
  Block* block = small ? find_small(size) : find_large(size);
  if (block) {
    take(block);
  } else {
    block = grow(small ? slab_bytes : round_up(size, slab_bytes), small, wanted);
  }
  // A remainder of a large block is only cut off when another large request could use it.
  const std::size_t left = block->size - size;
  if (small ? left > 0 : left > largest_small_block) split(block, size);
  return block;
}

Block* CachingAllocator::find_small(std::size_t size) {
  const std::size_t first = size / granule;
  std::size_t word = first / 64;
  std::uint64_t bits = occupied_[word] & (~std::uint64_t{0} << (first % 64));
  while (bits == 0) {
    if (++word == occupied_.size()) return nullptr;
    bits = occupied_[word];
  }
  Block* const first_block = bins_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
  const std::uint64_t lane = source_->lane();
  int looks = most_looks;
  for (Block* block = first_block; block && looks-- > 0; block = block->bin_after) {
    if (is_ready_for(lane, *block)) return block;
  }
  return first_block;
}

Block* CachingAllocator::find_large(std::size_t size) {
  Block wanted;
  wanted.size = size;
  const auto best = large_.lower_bound(&wanted);
  if (best == large_.end()) return nullptr;
  const std::uint64_t lane = source_->lane();
  int looks = most_looks;
  for (auto it = best; it != large_.end() && (*it)->size == (*best)->size && looks-- > 0; ++it) {
    if (is_ready_for(lane, **it)) return *it;
  }
  return *best;
}

Block* CachingAllocator::grow(std::size_t segment, bool slab, std::size_t wanted) {
  // Sizes that rise from one request to the next would leave every smaller segment behind.
  const bool outgrown = !slab && free_segments_ >= segment;
  const bool tight = stats_.limit && stats_.reserved + segment > stats_.limit;
  const bool may_release = !source_->keeps();
  if (may_release && (outgrown || tight)) release_cached_locked();
  Block* block = new_block();
  void* data = source_->acquire(segment);
  if (!data && may_release) {
    release_cached_locked();
    data = source_->acquire(segment);
  }
  if (!data) {
    recycle(block);
    throw_out_of_memory(wanted, "the system has no more");
  }
  stats_.reserved += segment;
  block->data = static_cast<char*>(data);
  block->size = segment;
  block->segment = ++segments_;
  block->slab = slab;
  return block;
}

void CachingAllocator::split(Block* block, std::size_t size) {
  Block* tail = new_block();
  tail->data = block->data + size;
  tail->size = block->size - size;
  tail->segment = block->segment;
  tail->lanes = block->lanes;
  tail->slab = block->slab;
  tail->before = block;
  tail->after = block->after;
  if (tail->after) tail->after->before = tail;
  block->after = tail;
  block->size = size;
  put(tail);
}

Block* CachingAllocator::merge(Block* block) {
  const auto swallow = [this](Block* left, Block* right) {
    left->size += right->size;
    left->lanes |= right->lanes;
    left->after = right->after;
    if (left->after) left->after->before = left;
    recycle(right);
  };
  if (Block* next = block->after; next && !next->live) {
    take(next);
    swallow(block, next);
  }
  if (Block* previous = block->before; previous && !previous->live) {
    take(previous);
    swallow(previous, block);
    block = previous;
  }
  return block;
}

void CachingAllocator::put(Block* block) {
  source_->poison(block->data, block->size, true);
  if (!block->slab) {
    large_.insert(block);
    if (is_whole_segment(*block)) free_segments_ += block->size;
    return;
  }
  const std::size_t bin = std::min(block->size / granule, bin_count - 1);
  block->bin_before = nullptr;
  block->bin_after = bins_[bin];
  if (block->bin_after) block->bin_after->bin_before = block;
  bins_[bin] = block;
  occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
}

void CachingAllocator::take(Block* block) {
  source_->poison(block->data, block->size, false);
  if (!block->slab) {
    large_.erase(block);
    if (is_whole_segment(*block)) free_segments_ -= block->size;
    return;
  }
  const std::size_t bin = std::min(block->size / granule, bin_count - 1);
  if (block->bin_before) block->bin_before->bin_after = block->bin_after;
  if (block->bin_after) block->bin_after->bin_before = block->bin_before;
  if (bins_[bin] == block) bins_[bin] = block->bin_after;
  if (!bins_[bin]) occupied_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
}

Block* CachingAllocator::new_block() {
  if (!spare_) return &blocks_.emplace_back();
  return std::exchange(spare_, std::exchange(spare_->bin_after, nullptr));
}

void CachingAllocator::recycle(Block* block) noexcept {
  *block = Block{};
  block->bin_after = std::exchange(spare_, block);
}

void CachingAllocator::note_peak(PeakRegion& region) {
  if (stats_.current <= region.peak) return;
  region.peak = stats_.current;
  region.serial = serial_;
  region.reserved = stats_.reserved;
  region.buried.clear();
}

void CachingAllocator::bury(const LedgerEntry& entry) {
  const auto remember = [&](PeakRegion& region) {
    if (entry.born <= region.serial) region.buried.push_back(entry);
  };
  remember(whole_);
  for (PeakRegion* region : regions_) remember(*region);
}

void CachingAllocator::release_cached_locked() {
  if (device_.is_cpu() && pinned_source()) pinned_source()->release_kept();
  const auto release = [this](Block* block) {
    take(block);
    stats_.reserved -= block->size;
    source_->release(block->data, block->size);
    recycle(block);
  };
  std::vector<Block*> free_segments;
  for (Block* block : large_) {
    if (is_whole_segment(*block)) free_segments.push_back(block);
  }
  for (Block* block = bins_[bin_count - 1]; block; block = block->bin_after) {
    if (is_whole_segment(*block)) free_segments.push_back(block);
  }
  for (Block* block : free_segments) release(block);
}

void CachingAllocator::release_cached() {
  const std::lock_guard lock(mutex_);
  release_cached_locked();
}

std::size_t CachingAllocator::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  return std::exchange(stats_.limit, bytes);
}

}  // namespace quipu::detail
