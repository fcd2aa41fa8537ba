#pragma once
// One caching allocator policy for all devices: 512-byte granules; small blocks cut from 2 MiB
// slabs, found through exact-size bins; large blocks best-fit, split and merged. Free segments that
// together are as large as a request but too small each are given back before another one is taken.
// Each live block carries its ledger entry, so a query walks blocks and nothing is hashed on the
// way in or out.
//
// Who held memory at a peak is known exactly at constant cost: a block was live at the peak if it
// was born before it and is either live still or was freed since; the freed ones are kept as small
// records until a higher peak comes. Internal to core/ and the back ends.
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "quipu/core/dtype.h"
#include "quipu/core/memory/memory.h"
#include "quipu/core/shape.h"

namespace quipu::detail {

inline constexpr std::size_t granule = 512;
inline constexpr std::size_t slab_bytes = std::size_t{2} << 20;
inline constexpr std::size_t largest_small_block = std::size_t{1} << 20;

/// Where an allocator gets its segments from: the system, a device driver, or thin air (meta).
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* acquire(std::size_t bytes) = 0;  // null when there is none; at least 512-aligned
  virtual void release(void* data, std::size_t bytes) noexcept = 0;
  virtual void fill(void* data, std::size_t bytes, unsigned char value) = 0;  // poison mode
  /// Tells an address sanitizer which parts are cached and must not be touched.
  virtual void poison(void* data, std::size_t bytes, bool on) noexcept {}

  // Devices that work through several queues (CUDA streams). A lane is one bit; a block keeps those
  // that may still use it, and goes to another lane only in order.
  virtual std::uint64_t lane() const noexcept { return 0; }  // that this thread works in
  /// What this thread asks for from now on comes after what these lanes were asked for before.
  virtual void wait_for(std::uint64_t lanes) {}
  /// A block is in use from now on, in the order of the lane, and then no more.
  virtual void opened(void* data, std::size_t bytes, std::size_t requested) {}
  virtual void closed(void* data, std::uint64_t lanes) {}

  /// Whether what was acquired is released only with the allocator, because a graph has its
  /// addresses.
  virtual bool keeps() const { return false; }

  // Sources that keep what was released for the next request.
  virtual std::size_t kept_bytes() const { return 0; }
  virtual void release_kept() noexcept {}
};

/// Host memory that devices read by themselves, provided by a back end; null where there is none.
void set_pinned_source(MemorySource* source);
MemorySource* pinned_source();

/// While this lives, what this thread takes from the CPU's allocator is pinned, if it can be.
class PinnedScope {
 public:
  PinnedScope();
  ~PinnedScope();
  PinnedScope(const PinnedScope&) = delete;
  PinnedScope& operator=(const PinnedScope&) = delete;

 private:
  bool outer_;
};

struct LedgerEntry {
  std::size_t bytes = 0;
  const char* op = nullptr;
  ScopeId scope = 0;
  Category category = Category::output;
  std::uint64_t born = 0;     // serial number of the event that made this entry
  std::int64_t since_ns = 0;  // when the block was allocated
  DType dtype = DType::u8;    // of the tensor that it was allocated for
  Shape shape;
};

class CachingAllocator;

/// A piece of a segment: live, or free and waiting in a bin.
struct Block {
  char* data = nullptr;
  std::size_t size = 0;       // granules it occupies, in bytes
  std::size_t requested = 0;  // as asked for, live blocks only
  std::uint64_t segment = 0;  // number of the segment that it was cut from
  std::uint64_t lanes = 0;    // of the source, that may still use it
  int keepers = 0;            // graphs that use it: it goes back after the last of them
  bool live = false;
  bool unowned = false;            // only they have it still
  bool slab = false;               // lies in a slab of small blocks
  bool direct = false;             // goes straight back to where it came from
  MemorySource* source = nullptr;  // where that is not the allocator's own source
  CachingAllocator* owner = nullptr;
  Block* before = nullptr;  // neighbours in the segment
  Block* after = nullptr;
  Block* bin_before = nullptr;  // neighbours in the free bin, in the list of live blocks, or spare
  Block* bin_after = nullptr;
  LedgerEntry entry;
};

/// A region whose peak is measured, with what it needs to name the holders at that peak.
struct PeakRegion {
  std::size_t peak = 0;
  std::uint64_t serial = 0;  // event at which the peak was reached
  std::size_t reserved = 0;
  std::vector<LedgerEntry> buried;  // live at the peak, gone since
};

struct EventLog;

class CachingAllocator {
 public:
  CachingAllocator(Device device, std::unique_ptr<MemorySource> source);

  /// Throws OutOfMemory. Zero bytes give null. Shape and dtype are for reports.
  Block* allocate(std::size_t bytes, Category category, const Shape& shape = {},
                  DType dtype = DType::u8);
  void free(Block* block) noexcept;
  /// The live block that `data` lies in, which from now on stays until let_go(), even if it is
  /// freed before; null where no block has it.
  Block* keep(const void* data);
  void let_go(Block* block) noexcept;
  /// Deletes an allocator and gives all its memory back, when the last of its blocks is free.
  static void abandon(CachingAllocator* allocator) noexcept;
  /// The lane that this thread works in uses the live block at `data`, too: reuse waits for it.
  void note_use(const void* data) noexcept;
  /// Moves a live block to another category.
  void relabel(Block* block, Category category) noexcept;

  MemoryStats stats() const;
  MemoryReport report_now() const;
  MemoryReport report_peak(const PeakRegion& region) const;
  MemoryReport report_peak() const { return report_peak(whole_); }
  void reset_peak();
  std::size_t enter(PeakRegion* region);    // returns what is live
  std::size_t restart(PeakRegion* region);  // returns what is live
  void leave(PeakRegion* region);
  std::size_t peak_of(const PeakRegion* region) const;
  std::size_t set_limit(std::size_t bytes);
  void release_cached();
  /// Every event from here on is noted in `log`, until it is taken away.
  void start(EventLog* log);
  void stop(EventLog* log);
  EventLog copy_of(const EventLog& log) const;
  /// Held over a fork(), so that the child finds it free and the lists whole.
  std::mutex& mutex() { return mutex_; }

 private:
  static constexpr std::size_t bin_count = largest_small_block / granule + 1;
  /// Among equals the oldest segment, whatever its address: every device and meta choose alike.
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      if (a->size != b->size) return a->size < b->size;
      return a->segment != b->segment ? a->segment < b->segment : a->data < b->data;
    }
  };

  MemorySource& source_of(const Block& block) { return block.source ? *block.source : *source_; }
  Block* take_pinned(std::size_t size);
  void close(Block* block) noexcept;
  bool give_back(Block* block) noexcept;
  Block* find_small(std::size_t size);
  Block* find_large(std::size_t size);
  Block* find_or_grow(std::size_t size, std::size_t wanted);
  Block* grow(std::size_t segment, bool slab, std::size_t wanted);
  void split(Block* block, std::size_t size);
  Block* merge(Block* block);
  void put(Block* block);
  void take(Block* block);
  Block* new_block();
  void recycle(Block* block) noexcept;
  std::size_t restart_locked(PeakRegion* region);
  void note_peak(PeakRegion& region);
  void bury(const LedgerEntry& entry);
  void note(const LedgerEntry& entry, int from, int to, std::int64_t now) noexcept;
  void release_cached_locked();
  MemoryReport summarise(const std::vector<LedgerEntry>& entries, const char* moment) const;
  std::vector<LedgerEntry> live_entries() const;
  [[noreturn]] void throw_out_of_memory(std::size_t bytes, const char* why) const;

  Device device_;
  std::unique_ptr<MemorySource> source_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  std::uint64_t serial_ = 0;
  PeakRegion whole_;
  std::vector<PeakRegion*> regions_;
  std::vector<EventLog*> logs_;
  std::array<Block*, bin_count> bins_{};
  std::array<std::uint64_t, (bin_count + 63) / 64> occupied_{};  // which bins are not empty
  std::set<Block*, BySize> large_;
  std::size_t free_segments_ = 0;  // bytes in large segments that are free as a whole
  std::uint64_t segments_ = 0;     // taken so far
  Block live_;                     // head of the list of live blocks
  std::deque<Block> blocks_;       // all that were ever made
  Block* spare_ = nullptr;         // those that stand for no memory now
  bool abandoned_ = false;
};

/// The allocator of a device; made at first use and never destroyed, so that no exit order can
/// hurt.
CachingAllocator& allocator_of(Device device);

/// Back ends say here where their memory comes from (the CPU and meta are built in).
using SourceFactory = std::unique_ptr<MemorySource> (*)(int index);
void set_memory_source(DeviceKind kind, SourceFactory factory);

}  // namespace quipu::detail
