#pragma once
// Device memory: one reserved range of addresses, of which each device has an equal part. Every
// allocation begins on a page of its own, with a gap before and behind it; freed addresses come
// back only when the range is used up, so that a stale pointer is recognised for long.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "shadow.h"

namespace quipu::emulator {

class DeviceMemory {
 public:
  struct Block {
    std::size_t offset = 0, bytes = 0;
    bool live = false;
  };
  static constexpr std::size_t span = std::size_t{1} << 38;

  DeviceMemory();

  bool contains(std::uintptr_t address) const { return address - base_ < span; }
  std::size_t offset_of(std::uintptr_t address) const { return address - base_; }
  int device_of(std::size_t offset) const { return static_cast<int>(offset / part_); }
  bool on_device(std::size_t offset, int device) const {
    return offset - static_cast<std::size_t>(device) * part_ < part_;
  }
  /// The block that an address belongs to; one of 0 bytes where there is none.
  const Block& block_at(std::size_t offset) const { return blocks_[owner_[offset / unit]]; }
  /// Whether all of [offset, offset + bytes) lies in one live block.
  bool inside(std::size_t offset, std::size_t bytes) const {
    const Block& block = block_at(offset);
    return block.live && offset >= block.offset && offset + bytes <= block.offset + block.bytes;
  }
  /// "load of 4 bytes at offset 400 of a device allocation of 400 bytes", for reports.
  std::string describe(std::size_t offset, std::size_t bytes, const char* what) const;

  /// Null where there is no space.
  void* allocate(std::size_t bytes, int device);
  /// False if no allocation begins there.
  bool release(void* pointer);
  std::size_t used(int device) const { return spaces_[static_cast<std::size_t>(device)].used; }

  /// See declare_block and retire_block in emulator.h.
  void declare(void* pointer, std::size_t bytes, std::size_t requested);
  void retire(void* pointer);

  Shadow& shadow() { return shadow_; }
  /// When a launch touched a sector: in which of its blocks, and after how many sectors of that.
  struct Moment {
    std::uint32_t block, clock;
  };
  /// What the launch had done with a sector before.
  struct Touch {
    bool read, written, shared;  // shared: by several blocks
    Moment last;
  };
  Touch touch(std::size_t offset, std::uint32_t launch, Moment now, bool read, bool write);

 private:
  static constexpr std::size_t unit = 512, page = 4096, sector = 32;
  struct Pages {
    std::size_t offset, bytes;
  };
  /// What a device has of the range.
  struct Space {
    std::size_t top, end;  // from here on nothing was ever taken
    std::size_t used = 0;
    std::deque<Pages> freed;
  };
  static bool find_pages(Space& space, std::size_t bytes, Pages& taken);
  void own(std::size_t offset, std::size_t bytes, std::uint32_t block);

  std::uintptr_t base_ = 0;
  std::size_t part_ = span;  // of one device
  std::vector<Space> spaces_;
  std::vector<Block> blocks_{Block{}};
  std::vector<Pages> pages_{Pages{}};  // by block: the pages that it took, 0 if it was carved
  std::uint32_t* owner_ = nullptr;     // by unit
  std::uint32_t* touched_ = nullptr;   // by sector: launch * 8 + what
  Moment* moments_ = nullptr;          // by sector: the last touch
  Shadow shadow_;
};
DeviceMemory& device_memory();

}  // namespace quipu::emulator
