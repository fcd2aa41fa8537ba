#pragma once
// The ledger: how much memory a device holds, who holds it, and who held it at the peak.
//
// Every block is entered with its category, the operator that asked for it and the user's scope.
// Counted are the requested bytes rounded up to 512, never the cached block that they landed in;
// the difference is part of `reserved`. So the figures do not depend on history, and `meta` gives
// the same ones as the device it imitates. Outside the ledger: fixed tiles of at most 256 KiB a
// thread, and small objects of the host.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/report/memory_report.h"

namespace quipu {

namespace detail {
struct PeakRegion;
}

/// Counters of one device, in bytes unless named otherwise.
struct MemoryStats {
  std::size_t current = 0;        // live bytes, each request rounded up to 512
  std::size_t peak = 0;           // largest `current` since start or reset_peak
  std::size_t reserved = 0;       // taken from the system: live, cached and slack
  std::size_t requested = 0;      // live bytes as asked for, before rounding
  std::size_t limit = 0;          // 0: none
  std::size_t live_blocks = 0;    // that hold `current`
  std::uint64_t allocations = 0;  // since start
  CategoryBytes by_category{};    // sums to `current`
};

/// The counters now; all 0 for a device that nothing was allocated on.
MemoryStats memory_stats(Device device = {});
/// The holders now, the largest first.
MemoryReport memory_report(Device device = {});
/// The holders at the moment of the peak since start or `reset_peak`.
MemoryReport peak_report(Device device = {});
/// Starts a new peak at what is live now. Regions of PeakMemory are not affected.
void reset_peak(Device device = {});

/// Live bytes may not exceed this (0: no limit). Returns the old limit.
std::size_t set_memory_limit(Device device, std::size_t bytes);
/// Gives cached blocks that nobody uses back to the system.
void release_cached(Device device);
void release_cached();  // of all devices

/// Off: every block goes straight to and from the system (also QUIPU_NO_CACHE=1). Returns the old
/// setting.
bool set_caching(bool on);
/// On: fresh and freed blocks are filled with NaN bits (also QUIPU_POISON=1). Returns the old
/// setting.
bool set_poison(bool on);

/// Every device that has held memory so far.
std::vector<Device> devices_in_use();

/// Measures the peak of its own region, whatever the regions around it do.
class PeakMemory {
 public:
  explicit PeakMemory(Device device = {});
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  std::size_t bytes() const;        // the region's peak, what was live at its start included
  std::size_t bytes_above() const;  // the peak above what was live at its start
  MemoryReport report() const;      // who held it
  void reset();                     // starts the region anew, at what is live now

 private:
  Device device_;
  std::unique_ptr<detail::PeakRegion> region_;
  std::size_t start_;
};

}  // namespace quipu
