#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "../emulator.h"
#include "../runtime/stream.h"

namespace quipu::emulator {
namespace {

void* reserve(std::size_t bytes, int protection) {
  void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("emulator: cannot reserve addresses for device memory");
    throw std::bad_alloc();
  }
  return at;
}

constexpr std::size_t round_up(std::size_t n, std::size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// Gives whole pages of [begin, end) back to the system; they read as zeros from now on.
void drop_pages(const void* begin, const void* end) {
  constexpr std::uintptr_t page = 4096;
  const std::uintptr_t first = round_up(reinterpret_cast<std::uintptr_t>(begin), page);
  const std::uintptr_t last = reinterpret_cast<std::uintptr_t>(end) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

/// Whether anybody looks at the shadow.
bool is_watched() {
  return settings().run && settings().check;
}

}  // namespace

DeviceMemory& device_memory() {
  static DeviceMemory* memory = new DeviceMemory;  // never destroyed, as a device is not
  return *memory;
}

DeviceMemory::DeviceMemory()
    : base_(reinterpret_cast<std::uintptr_t>(reserve(span, PROT_NONE))),
      owner_(static_cast<std::uint32_t*>(reserve(span / unit * 4, PROT_READ | PROT_WRITE))),
      touched_(static_cast<std::uint32_t*>(reserve(span / sector * 4, PROT_READ | PROT_WRITE))),
      moments_(
          static_cast<Moment*>(reserve(span / sector * sizeof(Moment), PROT_READ | PROT_WRITE))),
      shadow_(span, false) {
  const auto devices = static_cast<std::size_t>(settings().devices);
  part_ = span / devices / page * page;
  for (std::size_t i = 0; i < devices; ++i) {
    spaces_.push_back({i * part_ + page, (i + 1) * part_, 0, {}});
  }
}

std::string DeviceMemory::describe(std::size_t offset, std::size_t bytes, const char* what) const {
  const Block& block = block_at(offset);
  std::string text = std::string(what) + " of " + std::to_string(bytes) + " bytes ";
  if (block.bytes == 0 && block.offset == 0) return text + "outside every device allocation";
  const auto at = static_cast<std::ptrdiff_t>(offset) - static_cast<std::ptrdiff_t>(block.offset);
  return text + "at offset " + std::to_string(at) + " of a " + (block.live ? "" : "freed ") +
         "device allocation of " + std::to_string(block.bytes) + " bytes";
}

bool DeviceMemory::find_pages(Space& space, std::size_t bytes, Pages& taken) {
  const auto fits = std::find_if(space.freed.begin(), space.freed.end(),
                                 [&](const Pages& freed) { return freed.bytes >= bytes; });
  // A rehearsal takes much and touches nothing of it: it had better take the same again.
  const bool full = space.top + bytes > space.end;
  const bool again = fits != space.freed.end() && (!settings().run || full);
  if (!again && full) return false;
  if (!again) {
    taken = {space.top, bytes};
    space.top += bytes;
    return true;
  }
  taken = *fits;
  space.freed.erase(fits);
  return true;
}

void DeviceMemory::own(std::size_t offset, std::size_t bytes, std::uint32_t block) {
  std::fill_n(owner_ + offset / unit, round_up(bytes, unit) / unit, block);
}

void* DeviceMemory::allocate(std::size_t bytes, int device) {
  Space& space = spaces_[static_cast<std::size_t>(device)];
  if (space.used + bytes > settings().device_bytes) return nullptr;
  const std::size_t pages = round_up(std::max<std::size_t>(bytes, 1), page);
  Pages taken{};
  if (!find_pages(space, pages + 2 * page, taken)) return nullptr;
  const std::size_t offset = taken.offset + page;
  void* pointer = reinterpret_cast<void*>(base_ + offset);
  if (mprotect(pointer, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
  if (settings().run) std::memset(pointer, 0xff, bytes);  // NaN, in case nobody checks
  const auto number = static_cast<std::uint32_t>(blocks_.size());
  blocks_.push_back({offset, bytes, true});
  pages_.push_back(taken);
  own(taken.offset, taken.bytes, number);  // the gaps too: an overrun names its allocation
  space.used += bytes;
  return pointer;
}

bool DeviceMemory::release(void* pointer) {
  const std::size_t offset = offset_of(reinterpret_cast<std::uintptr_t>(pointer));
  if (offset >= span) return false;
  // Carved blocks go with the allocation that they were carved from.
  std::uint32_t number = owner_[offset / unit];
  while (number > 0 && (blocks_[number].offset != offset || pages_[number].bytes == 0)) --number;
  if (number == 0 || !blocks_[number].live) return false;
  const Pages taken = pages_[number];
  blocks_[number].live = false;
  Space& space = spaces_[static_cast<std::size_t>(device_of(offset))];
  space.used -= blocks_[number].bytes;
  own(taken.offset, taken.bytes, number);
  const std::size_t pages = taken.bytes - 2 * page;
  madvise(pointer, pages, MADV_DONTNEED);
  mprotect(pointer, pages, PROT_NONE);
  drop_pages(touched_ + offset / sector, touched_ + (offset + pages) / sector);
  drop_pages(moments_ + offset / sector, moments_ + (offset + pages) / sector);
  if (is_watched()) shadow_.forget(offset, pages);
  space.freed.push_back(taken);
  return true;
}

void DeviceMemory::declare(void* pointer, std::size_t bytes, std::size_t requested) {
  const std::size_t offset = offset_of(reinterpret_cast<std::uintptr_t>(pointer));
  if (offset >= span) return;
  const auto number = static_cast<std::uint32_t>(blocks_.size());
  blocks_.push_back({offset, requested, true});
  pages_.push_back({});
  own(offset, bytes, number);
  if (is_watched()) shadow_.set(offset, bytes, 0);
}

void DeviceMemory::retire(void* pointer) {
  const std::size_t offset = offset_of(reinterpret_cast<std::uintptr_t>(pointer));
  if (offset >= span) return;
  blocks_[owner_[offset / unit]].live = false;
}

DeviceMemory::Touch DeviceMemory::touch(std::size_t offset, std::uint32_t launch, Moment now,
                                        bool read, bool write) {
  std::uint32_t& seen = touched_[offset / sector];
  Moment& last = moments_[offset / sector];
  if (seen / 8 != launch) seen = launch * 8;
  const bool before_now = (seen & 3) != 0;
  if (before_now && last.block != now.block) seen |= 4;
  const Touch before{(seen & 1) != 0, (seen & 2) != 0, (seen & 4) != 0, last};
  seen |= (read ? 1u : 0u) | (write ? 2u : 0u);
  last = now;
  return before;
}

void declare_block(void* block, std::size_t bytes, std::size_t requested, Stream* stream) {
  submit_note(stream, [=] { device_memory().declare(block, bytes, requested); });
}

void retire_block(void* block, Stream* stream) {
  submit_note(stream, [=] { device_memory().retire(block); });
}

}  // namespace quipu::emulator
