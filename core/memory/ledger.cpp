// The allocator's answers: how much, held by whom, now and at a peak.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "quipu/core/error.h"
#include "quipu/core/memory/allocator.h"

namespace quipu {
using namespace detail;

namespace {

constexpr std::size_t blocks_shown = 20;

double seconds_since(std::int64_t ns, std::int64_t now) {
  return static_cast<double>(now - ns) * 1e-9;
}

/// The largest blocks; among equals the oldest.
std::vector<MemoryBlock> largest(std::vector<LedgerEntry> entries, std::int64_t now) {
  const auto shown = std::min(entries.size(), blocks_shown);
  std::partial_sort(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(shown),
                    entries.end(), [](const LedgerEntry& a, const LedgerEntry& b) {
                      return a.bytes != b.bytes ? a.bytes > b.bytes : a.since_ns < b.since_ns;
                    });
  entries.resize(shown);
  std::vector<MemoryBlock> blocks;
  for (const LedgerEntry& e : entries) {
    blocks.push_back({e.category, e.op ? e.op : "", scope_path(e.scope),
                      to_string(e.dtype) + to_string(e.shape), e.bytes,
                      seconds_since(e.since_ns, now)});
  }
  return blocks;
}

}  // namespace

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.peak = whole_.peak;
  if (device_.is_cpu() && pinned_source()) stats.reserved += pinned_source()->kept_bytes();
  return stats;
}

std::vector<LedgerEntry> CachingAllocator::live_entries() const {
  std::vector<LedgerEntry> entries;
  for (const Block* b = live_.bin_after; b != &live_; b = b->bin_after) entries.push_back(b->entry);
  return entries;
}

MemoryReport CachingAllocator::summarise(const std::vector<LedgerEntry>& entries,
                                         const char* moment) const {
  MemoryReport report;
  report.device = device_;
  report.moment = moment;
  report.reserved = stats_.reserved;
  // Operator names are compared as text: one literal may have several addresses.
  std::map<std::tuple<Category, std::string, ScopeId>, MemoryHolder> holders;
  const std::int64_t now = now_ns();
  for (const LedgerEntry& e : entries) {
    const std::string op = e.op ? e.op : "";
    MemoryHolder& holder = holders[{e.category, op, e.scope}];
    if (holder.blocks == 0) holder = {e.category, op, scope_path(e.scope), 0, 0, 0};
    holder.bytes += e.bytes;
    ++holder.blocks;
    holder.oldest_seconds = std::max(holder.oldest_seconds, seconds_since(e.since_ns, now));
    report.bytes += e.bytes;
    report.by_category[static_cast<std::size_t>(e.category)] += e.bytes;
    if (e.dtype == f32) report.in_f32[static_cast<std::size_t>(e.category)] += e.bytes;
  }
  report.blocks = largest(entries, now);
  for (auto& [key, holder] : holders) report.holders.push_back(std::move(holder));
  std::stable_sort(report.holders.begin(), report.holders.end(),
                   [](const MemoryHolder& a, const MemoryHolder& b) { return a.bytes > b.bytes; });
  return report;
}

MemoryReport CachingAllocator::report_now() const {
  const std::lock_guard lock(mutex_);
  return summarise(live_entries(), "now");
}

MemoryReport CachingAllocator::report_peak(const PeakRegion& region) const {
  const std::lock_guard lock(mutex_);
  std::vector<LedgerEntry> entries = live_entries();
  std::erase_if(entries, [&](const LedgerEntry& e) { return e.born > region.serial; });
  entries.insert(entries.end(), region.buried.begin(), region.buried.end());
  MemoryReport report = summarise(entries, "at the peak");
  report.reserved = region.reserved;
  ensure(report.bytes == region.peak, "the ledger at the peak sums to ", report.bytes,
         " bytes instead of ", region.peak);
  return report;
}

std::size_t CachingAllocator::restart_locked(PeakRegion* region) {
  region->peak = stats_.current;
  region->serial = serial_;
  region->reserved = stats_.reserved;
  region->buried.clear();
  return stats_.current;
}

std::size_t CachingAllocator::restart(PeakRegion* region) {
  const std::lock_guard lock(mutex_);
  return restart_locked(region);
}

void CachingAllocator::reset_peak() {
  restart(&whole_);
}

std::size_t CachingAllocator::enter(PeakRegion* region) {
  const std::lock_guard lock(mutex_);
  regions_.push_back(region);
  return restart_locked(region);
}

void CachingAllocator::leave(PeakRegion* region) {
  const std::lock_guard lock(mutex_);
  std::erase(regions_, region);
}

std::size_t CachingAllocator::peak_of(const PeakRegion* region) const {
  const std::lock_guard lock(mutex_);
  return region->peak;
}

void CachingAllocator::throw_out_of_memory(std::size_t bytes, const char* why) const {
  const MemoryReport report = summarise(live_entries(), "now");
  const ThreadContext& context = thread_context();
  const std::size_t room = stats_.limit > stats_.current ? stats_.limit - stats_.current : 0;
  std::string text = fmt::format(
      "{}out of memory on {}: {} asked for, and {}. Live {}, cached and free {}, reserved {}{}.\n",
      context.op ? fmt::format("{}: ", context.op) : "", to_string(device_), human_bytes(bytes),
      why, human_bytes(stats_.current),
      human_bytes(stats_.reserved - std::min(stats_.reserved, stats_.current)),
      human_bytes(stats_.reserved),
      stats_.limit
          ? fmt::format(", limit {} ({} left)", human_bytes(stats_.limit), human_bytes(room))
          : "");
  text += report.text(10);
  text += "What would help:";
  for (const MemoryAdvice& advice : report.advice()) {
    text += fmt::format(" {} (about {} less);", advice.what, human_bytes(advice.saves));
  }
  text += " zero_grad() before the step; dropping tensors and tapes that are no longer needed";
  text += stats_.limit ? "; a higher set_memory_limit()." : ".";
  throw OutOfMemory(text, bytes);
}

}  // namespace quipu
