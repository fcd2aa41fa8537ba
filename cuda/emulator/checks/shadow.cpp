#include "shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "order.h"

namespace quipu::emulator {
namespace {

constexpr std::size_t word = 4;

/// Whether an access at `earlier` can overlap with the asking thread, which is another one.
template <bool Shared>
bool unordered(Stamp earlier, const Asker& asker) {
  const std::uint64_t epoch = epoch_of(earlier);
  if (epoch == epoch_of(asker.now) && (Shared || warp_of(earlier) != several_blocks)) {
    return thread_of(earlier) != thread_of(asker.now) && !ordered_by_warp(earlier, asker.now);
  }
  if constexpr (Shared) return false;
  if (epoch >= asker.launch_start) {
    const bool other_block = epoch < asker.block_start || warp_of(earlier) == several_blocks;
    return other_block && !asker.order->knows(earlier, asker.now);
  }
  return epoch >= asker.oldest_unordered && !stream_order().ordered(epoch);
}

template <bool Shared>
Finding judge_read(Cell& cell, const Asker& asker) {
  const Stamp now = asker.now;
  Finding finding;
  if (Shared ? epoch_of(cell.writer) < asker.block_start : cell.writer == 0) {
    finding.kind = Finding::uninitialised;
  } else if (unordered<Shared>(cell.writer, asker)) {
    finding = {Finding::read_after_write, cell.writer, cell.writer_at};
  }
  // One reader is remembered: the last, or "several" where the ones before still matter.
  Stamp reader = now;
  if (cell.reader != 0 && unordered<Shared>(cell.reader, asker)) {
    if (!Shared && epoch_of(cell.reader) < asker.launch_start) return finding;  // another stream's
    const bool this_block = epoch_of(cell.reader) >= asker.block_start;
    if (!Shared && (!this_block || warp_of(cell.reader) == several_blocks)) {
      reader = with_warp(now, several_blocks);
    } else if (warp_of(cell.reader) == warp_of(now)) {
      reader = with_lane(now, several_lanes);
    } else {
      reader = with_warp(now, several_warps);
    }
  }
  cell.reader = reader;
  cell.reader_at = asker.at;
  return finding;
}

template <bool Shared>
Finding judge_write(Cell& cell, Access access, const Asker& asker) {
  const bool atomic = access == Access::atomic;
  const bool both_atomic = atomic && is_atomic(cell.writer);
  Finding finding;
  const bool fresh = Shared ? epoch_of(cell.writer) < asker.block_start : cell.writer == 0;
  if (atomic && fresh) {
    finding.kind = Finding::uninitialised;
  } else if (!both_atomic && cell.writer != 0 && unordered<Shared>(cell.writer, asker)) {
    finding = {Finding::write_after_write, cell.writer, cell.writer_at};
  } else if (cell.reader != 0 && unordered<Shared>(cell.reader, asker)) {
    finding = {Finding::write_after_read, cell.reader, cell.reader_at};
  }
  Stamp writer = asker.now | Stamp{atomic};
  if (atomic && epoch_of(cell.writer) == epoch_of(asker.now)) {
    if (thread_of(cell.writer) == thread_of(asker.now)) {
      writer &= ~Stamp{!is_atomic(cell.writer)};  // its plain write still has to be ordered
    } else if (both_atomic) {
      writer = with_warp(writer, several_warps);
    }
  }
  if (access == Access::copy) writer = with_epoch(writer, in_flight);
  cell = {writer, 0, asker.at, 0};  // readers before the write are ordered, or reported just now
  return finding;
}

template <bool Shared>
Finding judge(Cell& cell, Access access, const Asker& asker) {
  if (epoch_of(cell.writer) == in_flight) [[unlikely]] {
    return {Finding::unfinished_copy, cell.writer, cell.writer_at};
  }
  return access == Access::read ? judge_read<Shared>(cell, asker)
                                : judge_write<Shared>(cell, access, asker);
}

}  // namespace

Shadow::Shadow(std::size_t bytes, bool shared) : shared_(shared) {
  reserved_ = (bytes / word + 1) * sizeof(Cell);
  void* cells = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (cells == MAP_FAILED) throw std::bad_alloc();
  cells_ = static_cast<Cell*>(cells);
}

Shadow::~Shadow() {
  munmap(cells_, reserved_);
}

Finding Shadow::touch(std::size_t offset, std::size_t bytes, Access access, const Asker& asker) {
  return shared_ ? touch_in<true>(offset, bytes, access, asker)
                 : touch_in<false>(offset, bytes, access, asker);
}

template <bool Shared>
Finding Shadow::touch_in(std::size_t offset, std::size_t bytes, Access access, const Asker& asker) {
  Finding first;
  const std::size_t end = offset + bytes;
  for (std::size_t at = offset / word * word; at < end; at += word) {
    Cell& cell = cells_[at / word];
    const std::size_t from = std::max(at, offset) - at, to = std::min(at + word, end) - at;
    const bool whole = to - from == word;
    const Finding finding = whole && epoch_of(cell.writer) != split
                                ? judge<Shared>(cell, access, asker)
                                : touch_parts<Shared>(cell, from, to, access, asker);
    if (first.kind == Finding::none) first = finding;
  }
  return first;
}

template <bool Shared>
Finding Shadow::touch_parts(Cell& cell, std::size_t from, std::size_t to, Access access,
                            const Asker& asker) {
  std::array<Cell, 4>& parts = parts_of(cell);
  Finding first;
  for (std::size_t i = from; i < to; ++i) {
    const Finding finding = judge<Shared>(parts[i], access, asker);
    if (first.kind == Finding::none) first = finding;
  }
  if (access != Access::read && to - from == word) join(cell, parts[0]);
  return first;
}

std::array<Cell, 4>& Shadow::parts_of(Cell& cell) {
  if (epoch_of(cell.writer) == split) return parts_[cell.writer_at];
  std::uint32_t number = static_cast<std::uint32_t>(parts_.size());
  if (free_parts_.empty()) {
    parts_.emplace_back();
  } else {
    number = free_parts_.back();
    free_parts_.pop_back();
  }
  parts_[number].fill(cell);
  cell = {with_epoch(0, split), 0, number, 0};
  return parts_[number];
}

void Shadow::join(Cell& cell, const Cell& value) {
  const Cell whole = value;
  if (epoch_of(cell.writer) == split) free_parts_.push_back(cell.writer_at);
  cell = whole;
}

void Shadow::set(std::size_t offset, std::size_t bytes, Stamp writer, std::uint32_t at_code) {
  const Cell value{writer, 0, at_code, 0};
  const std::size_t end = offset + bytes;
  for (std::size_t at = offset / word * word; at < end; at += word) {
    Cell& cell = cells_[at / word];
    if (at >= offset && at + word <= end) {
      join(cell, value);
      continue;
    }
    std::array<Cell, 4>& parts = parts_of(cell);
    for (std::size_t i = std::max(at, offset); i < std::min(at + word, end); ++i)
      parts[i - at] = value;
  }
}

void Shadow::copy(std::size_t to, std::size_t from, std::size_t bytes, Stamp writer) {
  set(to, bytes, writer);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (cell_of_byte(from + i).writer == 0) set(to + i, 1, 0);
  }
}

const Cell& Shadow::cell_of_byte(std::size_t offset) const {
  const Cell& cell = cells_[offset / word];
  return epoch_of(cell.writer) == split ? parts_[cell.writer_at][offset % word] : cell;
}

bool Shadow::all_written(std::size_t offset, std::size_t bytes) const {
  for (std::size_t i = offset; i < offset + bytes; ++i) {
    if (cell_of_byte(i).writer == 0) return false;
  }
  return true;
}

Finding Shadow::touch_whole(std::size_t offset, std::size_t bytes, bool write, const Asker& asker) {
  Finding first;
  if (write && asker.oldest_unordered >= asker.launch_start) return first;
  for (std::size_t at = offset / word; at < (offset + bytes + word - 1) / word; ++at) {
    Cell& cell = cells_[at];
    const bool parted = epoch_of(cell.writer) == split;
    Cell* const parts = parted ? parts_[cell.writer_at].data() : &cell;
    for (Cell* c = parts; c != parts + (parted ? word : 1); ++c) {
      const auto overlaps = [&](Stamp s) { return s != 0 && unordered<false>(s, asker); };
      if (first.kind != Finding::none) continue;
      if (overlaps(c->writer)) {
        first = {write ? Finding::write_after_write : Finding::read_after_write, c->writer,
                 c->writer_at};
      } else if (write && overlaps(c->reader)) {
        first = {Finding::write_after_read, c->reader, c->reader_at};
      }
      if (!write) c->reader = asker.now, c->reader_at = 0;
    }
  }
  return first;
}

void Shadow::forget(std::size_t offset, std::size_t bytes) {
  set(offset, bytes, 0);
  constexpr std::size_t page = 4096;
  char* const first = reinterpret_cast<char*>(cells_ + offset / word);
  char* const last = reinterpret_cast<char*>(cells_ + (offset + bytes) / word);
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(first) + page - 1) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(last) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace quipu::emulator
