// The allocator's answers: how much, held by whom, now and at a peak.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "quipu/core/allocator.h"
#include "quipu/core/error.h"

namespace quipu {

const char* name_of(Category category) {
  constexpr const char* names[] = {"parameter", "gradient", "optimizer",
                                   "saved",     "output",   "workspace"};
  return names[static_cast<int>(category)];
}

std::string human_bytes(std::size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  for (; value >= 1024; ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, units[unit]);
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  MemoryStats stats = stats_;
  stats.peak = whole_.peak;
  return stats;
}

std::vector<LedgerEntry> CachingAllocator::live_entries() const {
  std::vector<LedgerEntry> entries;
  for (const Block* b = live_.bin_after; b != &live_; b = b->bin_after) entries.push_back(b->entry);
  return entries;
}

MemoryReport CachingAllocator::summarise(const std::vector<LedgerEntry>& entries,
                                         const char* moment) const {
  MemoryReport report{device_, moment, 0, stats_.reserved, {}, {}};
  // Operator names are compared as text: one literal may have several addresses.
  std::map<std::tuple<Category, std::string, ScopeId>, MemoryHolder> holders;
  const std::int64_t now = now_ns();
  for (const LedgerEntry& e : entries) {
    const std::string op = e.op ? e.op : "";
    MemoryHolder& holder = holders[{e.category, op, e.scope}];
    if (holder.blocks == 0) holder = {e.category, op, scope_path(e.scope), 0, 0, 0};
    holder.bytes += e.bytes;
    ++holder.blocks;
    holder.oldest_seconds =
        std::max(holder.oldest_seconds, static_cast<double>(now - e.since_ns) * 1e-9);
    report.bytes += e.bytes;
    report.by_category[static_cast<std::size_t>(e.category)] += e.bytes;
  }
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
  text += "What would help: a smaller batch; recompute() around layers";
  text +=
      report.by_category[static_cast<std::size_t>(Category::saved)] > 0
          ? fmt::format(" ({} are saved for backward); ",
                        human_bytes(report.by_category[static_cast<std::size_t>(Category::saved)]))
          : "; ";
  text +=
      "bf16 instead of f32; zero_grad() before the step; dropping tensors and tapes that are no "
      "longer needed";
  text += stats_.limit ? "; a higher set_memory_limit()." : ".";
  throw OutOfMemory(text, bytes);
}

std::string MemoryReport::text(int max_holders) const {
  std::string out = fmt::format("memory on {} {}: {} live, {} reserved\n", to_string(device),
                                moment, human_bytes(bytes), human_bytes(reserved));
  for (int c = 0; c < category_count; ++c) {
    const std::size_t held = by_category[static_cast<std::size_t>(c)];
    if (held == 0) continue;
    out += fmt::format("  {:<10} {:>11}  {:5.1f} %\n", name_of(static_cast<Category>(c)),
                       human_bytes(held),
                       100.0 * static_cast<double>(held) / static_cast<double>(bytes));
  }
  if (holders.empty()) return out;
  out += "  largest holders\n";
  const auto shown = std::min(holders.size(), static_cast<std::size_t>(std::max(max_holders, 0)));
  for (std::size_t i = 0; i < shown; ++i) {
    const MemoryHolder& h = holders[i];
    out += fmt::format("    {:>11}  {:<10} {:<16} {:<24} {} block{}\n", human_bytes(h.bytes),
                       name_of(h.category), h.op.empty() ? "-" : h.op,
                       h.scope.empty() ? "-" : h.scope, h.blocks, h.blocks == 1 ? "" : "s");
  }
  if (shown < holders.size()) {
    std::size_t rest = 0;
    for (std::size_t i = shown; i < holders.size(); ++i) rest += holders[i].bytes;
    out += fmt::format("    {:>11}  in {} more\n", human_bytes(rest), holders.size() - shown);
  }
  return out;
}

}  // namespace quipu
