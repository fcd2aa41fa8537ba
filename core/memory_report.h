#pragma once
// Who held how much memory at one moment, and what would help: as text, JSON, or a page to look at.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quipu/core/device.h"

namespace quipu {

enum class Category : std::uint8_t { parameter, gradient, optimizer, saved, output, workspace };
inline constexpr int category_count = 6;
const char* name_of(Category category);

/// Bytes of each category.
using CategoryBytes = std::array<std::size_t, category_count>;

/// All blocks of one category that one operator asked for under one scope.
struct MemoryHolder {
  Category category;
  std::string op;     // "" when no operator ran
  std::string scope;  // "" when no scope was open
  std::size_t bytes = 0;
  std::size_t blocks = 0;
  double oldest_seconds = 0;  // age of its oldest block
};

/// One block.
struct MemoryBlock {
  Category category;
  std::string op, scope;
  std::string tensor;  // what it was allocated for: "bf16(12, 256, 128)"
  std::size_t bytes = 0;
  double age_seconds = 0;
};

/// What a knot of a tape keeps for backward. A tensor that two knots keep stands in both.
struct KnotMemory {
  std::size_t knot = 0;
  std::string op, scope;
  std::string output;  // of the operator: "bf16(12, 256, 128)"
  std::size_t saved = 0, workspace = 0;
  double forward_seconds = 0;
};

/// What was live after an event.
struct TimelinePoint {
  std::size_t event = 0;  // allocations, releases and changes of category before it
  double seconds = 0;     // since the recording began
  CategoryBytes bytes{};
};

/// Something to do, and about how many bytes less the moment would have had.
struct MemoryAdvice {
  std::string what;
  std::size_t saves = 0;
};

/// Who held how much at one moment. Holders are sorted by size and sum to `bytes`.
struct MemoryReport {
  Device device;
  std::string moment;  // "now" or "at the peak"
  std::size_t bytes = 0;
  std::size_t reserved = 0;
  CategoryBytes by_category{};
  std::vector<MemoryHolder> holders;
  std::vector<MemoryBlock> blocks;  // the twenty largest
  CategoryBytes in_f32{};           // the part of each category that is f32

  // Of a MemoryRecording or a plan.
  std::vector<TimelinePoint> timeline;  // thinned, with every peak that was there
  std::size_t peak_event = 0;           // where on the timeline the moment is
  std::vector<KnotMemory> knots;        // the largest knots of the largest tape

  /// A table of the categories and the largest holders.
  std::string text(int max_holders = 10) const;
  std::string json() const;
  /// One page without anything from outside, for a light or a dark screen.
  std::string html(const std::string& title = "Memory") const;
  /// The timeline alone, a piece of HTML that brings its own style, for other pages.
  std::string timeline_html() const;

  /// What `recompute`, bf16 and half the batch would save, the largest first; nothing that saves
  /// less than a hundredth. Estimates: recomputed scopes keep one tensor each, and one of them is
  /// there in full while it is computed again; all but parameters, their gradients and the
  /// optimizer's state grows with the batch.
  std::vector<MemoryAdvice> advice() const;
};

/// "4.1 MiB"
std::string human_bytes(std::size_t bytes);

}  // namespace quipu
