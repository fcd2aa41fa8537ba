#pragma once
// Shadow memory: for each 4-byte word who wrote it last and who read it last, and when. An access
// that no barrier orders after those is a race, whatever the schedule of this run was.
//
// Time is counted in epochs: a barrier ends one, and so does a block. Inside an epoch each warp has
// a clock, which __syncwarp advances. Words that are accessed in parts get a cell for each byte.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace quipu::emulator {

enum class Access : std::uint8_t {
  read,
  write,
  atomic,
  copy,  // the destination of an asynchronous copy, from issue to wait
};

/// Who and when, in one word: epoch 31 bits, clock 20, warp 6, lane 6, atomic 1. 0: never.
using Stamp = std::uint64_t;
inline constexpr std::uint64_t several_lanes = 32, several_blocks = 62, several_warps = 63;
inline constexpr std::uint64_t clock_limit = (1u << 20) - 1;
inline constexpr std::uint64_t in_flight = (std::uint64_t{1} << 31) - 1, split = in_flight - 1;

constexpr Stamp make_stamp(std::uint64_t epoch, std::uint64_t clock, std::uint64_t warp,
                           std::uint64_t lane) {
  return epoch << 33 | clock << 13 | warp << 7 | lane << 1;
}
constexpr std::uint64_t epoch_of(Stamp s) {
  return s >> 33;
}
constexpr std::uint64_t clock_of(Stamp s) {
  return s >> 13 & clock_limit;
}
constexpr std::uint64_t warp_of(Stamp s) {
  return s >> 7 & 63;
}
constexpr std::uint64_t lane_of(Stamp s) {
  return s >> 1 & 63;
}
constexpr std::uint64_t thread_of(Stamp s) {
  return s >> 1 & 0xfff;
}
constexpr bool is_atomic(Stamp s) {
  return s & 1;
}
constexpr Stamp with_epoch(Stamp s, std::uint64_t epoch) {
  return (s & ((std::uint64_t{1} << 33) - 1)) | epoch << 33;
}
constexpr Stamp with_warp(Stamp s, std::uint64_t warp) {
  return (s & ~(Stamp{63} << 7)) | warp << 7;
}
constexpr Stamp with_lane(Stamp s, std::uint64_t lane) {
  return (s & ~(Stamp{63} << 1)) | lane << 1;
}
/// By a __syncwarp since: same epoch, same warp, an earlier clock.
constexpr bool ordered_by_warp(Stamp earlier, Stamp now) {
  return warp_of(earlier) == warp_of(now) && clock_of(earlier) < clock_of(now);
}

struct Cell {
  Stamp writer, reader;
  std::uint32_t writer_at, reader_at;  // where in the code
};

class Order;

/// The thread that asks.
struct Asker {
  Stamp now = 0;
  std::uint32_t at = 0;
  std::uint64_t block_start = 0, launch_start = 0;  // epochs
  std::uint64_t oldest_unordered = 0;  // work on other streams may overlap from this epoch on
  const Order* order = nullptr;
};

/// What is wrong with an access, and with whom it conflicts.
struct Finding {
  enum Kind : std::uint8_t {
    none,
    uninitialised,
    unfinished_copy,
    read_after_write,
    write_after_write,
    write_after_read,
  } kind = none;
  Stamp other = 0;
  std::uint32_t other_at = 0;
};

/// The cells of one range of memory.
class Shadow {
 public:
  /// Reserves cells for `bytes` of memory; they take space once they are used.
  explicit Shadow(std::size_t bytes, bool shared);
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  ~Shadow();

  /// Judges an access to bytes [offset, offset + bytes) and remembers it.
  Finding touch(std::size_t offset, std::size_t bytes, Access access, const Asker& asker);
  /// Marks bytes as last written so, and not read since; stamp 0: never written.
  void set(std::size_t offset, std::size_t bytes, Stamp writer, std::uint32_t at = 0);
  /// The destination of a copy is written where its source was.
  void copy(std::size_t to, std::size_t from, std::size_t bytes, Stamp writer);
  /// A copy, a fill or a library call reads or is about to write these bytes: the first conflict
  /// with work on other streams.
  Finding touch_whole(std::size_t offset, std::size_t bytes, bool write, const Asker& asker);
  bool all_written(std::size_t offset, std::size_t bytes) const;
  /// Gives the space of whole pages back; all is as never touched.
  void forget(std::size_t offset, std::size_t bytes);

 private:
  template <bool Shared>
  Finding touch_in(std::size_t offset, std::size_t bytes, Access access, const Asker& asker);
  template <bool Shared>
  Finding touch_parts(Cell& cell, std::size_t first, std::size_t last, Access access,
                      const Asker& asker);
  std::array<Cell, 4>& parts_of(Cell& cell);
  const Cell& cell_of_byte(std::size_t offset) const;
  void join(Cell& cell, const Cell& value);

  Cell* cells_ = nullptr;
  std::size_t reserved_ = 0;
  bool shared_ = false;
  std::vector<std::array<Cell, 4>> parts_;
  std::vector<std::uint32_t> free_parts_;
};

}  // namespace quipu::emulator
