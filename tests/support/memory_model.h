#pragma once
// What the tests of memory share: blocks, and the ledger again, written the slow and obvious way
// (all live blocks in a map, and a full snapshot of the holders at every new peak).
#include <doctest/doctest.h>

#include <array>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "quipu/core/memory/memory.h"
#include "quipu/core/memory/storage.h"

namespace quipu::testing {

inline constexpr std::size_t mib = std::size_t{1} << 20;

inline detail::Ref<detail::Storage> block(std::size_t bytes, Device device = "meta:cpu",
                                          Category category = Category::output) {
  return detail::Ref<detail::Storage>(new detail::Storage(bytes, device, category));
}

inline std::size_t rounded(std::size_t bytes) {
  return (bytes + 511) / 512 * 512;
}

class MemoryModel {
 public:
  struct Entry {
    std::size_t requested = 0;
    Category category = Category::output;
    std::string op, scope;
  };
  using Holders = std::map<std::tuple<Category, std::string, std::string>,
                           std::pair<std::size_t, std::size_t>>;  // bytes, blocks
  struct Peak {
    std::size_t bytes = 0;
    Holders holders;
  };

  void allocate(int id, const Entry& entry) {
    if (entry.requested == 0) return;  // zero bytes need no block
    live_[id] = entry;
    current_ += rounded(entry.requested);
    for (Peak& peak : peaks_) {
      if (current_ > peak.bytes) peak = {current_, holders()};
    }
  }
  void free(int id) {
    const auto it = live_.find(id);
    if (it == live_.end()) return;
    current_ -= rounded(it->second.requested);
    live_.erase(it);
  }
  void relabel(int id, Category category) {
    if (const auto it = live_.find(id); it != live_.end()) it->second.category = category;
  }

  /// Starts a region; it lives until `leave`.
  Peak* enter() { return &peaks_.emplace_back(Peak{current_, holders()}); }
  void restart(Peak* peak) { *peak = {current_, holders()}; }
  void leave(Peak* peak) {
    peaks_.remove_if([&](const Peak& p) { return &p == peak; });
  }

  Holders holders() const {
    Holders result;
    for (const auto& [id, e] : live_) {
      auto& [bytes, blocks] = result[{e.category, e.op, e.scope}];
      bytes += rounded(e.requested);
      ++blocks;
    }
    return result;
  }

  void check_stats(const MemoryStats& stats) const {
    std::size_t requested = 0;
    std::array<std::size_t, category_count> by_category{};
    for (const auto& [id, e] : live_) {
      requested += e.requested;
      by_category[static_cast<std::size_t>(e.category)] += rounded(e.requested);
    }
    REQUIRE(stats.current == current_);
    REQUIRE(stats.requested == requested);
    REQUIRE(stats.live_blocks == live_.size());
    REQUIRE(stats.by_category == by_category);
    REQUIRE(stats.reserved >= stats.current);
  }

  /// A report must name the same holders as a snapshot, and sum up.
  static void check_report(const MemoryReport& report, const Peak& expected) {
    REQUIRE(report.bytes == expected.bytes);
    Holders seen;
    std::size_t sum = 0, last = report.bytes;
    std::array<std::size_t, category_count> by_category{};
    for (const MemoryHolder& h : report.holders) {
      REQUIRE(h.bytes <= last);  // the largest comes first
      last = h.bytes;
      sum += h.bytes;
      by_category[static_cast<std::size_t>(h.category)] += h.bytes;
      seen[{h.category, h.op, h.scope}] = {h.bytes, h.blocks};
    }
    REQUIRE(sum == report.bytes);
    REQUIRE(report.by_category == by_category);
    REQUIRE(seen == expected.holders);
  }

  std::size_t current() const { return current_; }

 private:
  std::map<int, Entry> live_;
  std::size_t current_ = 0;
  std::list<Peak> peaks_;
};

}  // namespace quipu::testing
