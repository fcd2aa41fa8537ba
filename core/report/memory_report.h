#pragma once
// Who held how much memory at one moment, and what would help: as text, JSON, or a page to look at.
#include <cstddef>
#include <string>
#include <vector>

#include "quipu/core/device.h"
#include "quipu/core/memory/category.h"

namespace quipu {

/// All blocks of one category that one operator asked for under one scope.
struct MemoryHolder {
  Category category;          // what the memory is for
  std::string op;             // "" when no operator ran
  std::string scope;          // "" when no scope was open
  std::size_t bytes = 0;      // of all its blocks
  std::size_t blocks = 0;     // how many they are
  double oldest_seconds = 0;  // age of its oldest block
};

/// One block.
struct MemoryBlock {
  Category category;  // what it is for
  /// The operator that asked for it; "" when none ran.
  std::string op, scope;   // the user's scope then; "" when none was open
  std::string tensor;      // what it was allocated for: "bf16(12, 256, 128)"
  std::size_t bytes = 0;   // rounded up to 512
  double age_seconds = 0;  // from its allocation to the moment of the report
};

namespace detail {

/// What a knot of a tape keeps for backward. A tensor that two knots keep stands in both.
struct KnotMemory {
  std::size_t knot = 0;
  std::string op, scope;
  std::string output;  // of the operator: "bf16(12, 256, 128)"
  std::size_t saved = 0, workspace = 0;
  double forward_seconds = 0;
};

}  // namespace detail

/// What was live after an event.
struct TimelinePoint {
  std::size_t event = 0;  // allocations, releases and changes of category before it
  double seconds = 0;     // since the recording began
  CategoryBytes bytes{};  // live, by category
};

/// Something to do, and about how many bytes less the moment would have had.
struct MemoryAdvice {
  std::string what;       // a phrase for the user
  std::size_t saves = 0;  // bytes, estimated
};

/// Who held how much at one moment. Holders are sorted by size and sum to `bytes`.
struct MemoryReport {
  Device device;                      // whose memory it is
  std::string moment;                 // "now" or "at the peak"
  std::size_t bytes = 0;              // live then, each request rounded up to 512
  std::size_t reserved = 0;           // taken from the system then: live, cached and slack
  CategoryBytes by_category{};        // sums to `bytes`
  std::vector<MemoryHolder> holders;  // the largest first
  std::vector<MemoryBlock> blocks;    // the twenty largest
  CategoryBytes in_f32{};             // the part of each category that is f32

  // Of a MemoryRecording or a plan.
  std::vector<TimelinePoint> timeline;    // thinned, with every peak that was there
  std::size_t peak_event = 0;             // where on the timeline the moment is
  std::vector<detail::KnotMemory> knots;  // the largest knots of the largest tape

  /// A table of the categories and the largest holders.
  std::string text(int max_holders = 10) const;
  /// All of it as one JSON object, with the advice; sizes in bytes.
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
