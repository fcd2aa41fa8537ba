// cp.async. The copy happens when it is issued or when it is waited for, as the seed says; a kernel
// must not care. From issue to wait nobody may touch the destination.
#include <cstring>

#include "checks/report.h"
#include "multiprocessor.h"

namespace quipu::emulator {

void AsyncCopy::perform() {
  if (done) return;
  std::memcpy(to, from, bytes - zeros);
  std::memset(to + bytes - zeros, 0, zeros);
  done = true;
}

void Multiprocessor::copy_async(void* to, const void* from, std::size_t bytes, std::size_t zeros,
                                std::uintptr_t code) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || zeros > bytes) {
    fault("invalid copy", code,
          "an asynchronous copy moves 4, 8 or 16 bytes, not " + std::to_string(bytes));
  }
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  const auto destination = reinterpret_cast<std::uintptr_t>(to);
  if (source % bytes != 0) {
    fault("misaligned access", code,
          "the source of an asynchronous copy of " + std::to_string(bytes) +
              " bytes is no multiple of that");
  }
  if (watching != nullptr) {
    if (zeros < bytes) access(source, bytes - zeros, Access::read, code);
    access(destination, bytes, Access::copy, code);
  }
  lane().copies.push_back(
      {static_cast<char*>(to), static_cast<const char*>(from), bytes, zeros, code, false});
  if (shuffled_ && random() % 4 == 0) lane().copies.back().perform();
}

void Multiprocessor::copy_commit() {
  lane().copy_groups.push_back(lane().copies.size());
}

void Multiprocessor::copy_wait(std::size_t groups_left) {
  auto& copies = lane().copies;
  auto& groups = lane().copy_groups;
  if (groups.size() <= groups_left) return;
  const std::size_t finished = groups.size() - groups_left;
  const std::size_t count = groups[finished - 1];
  for (std::size_t i = 0; i < count; ++i) land(copies[i]);
  copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(count));
  groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(finished));
  for (std::size_t& group : groups) group -= count;
}

/// The copy is over: its bytes count as written now, by the thread that waited.
void Multiprocessor::land(AsyncCopy& copy) {
  copy.perform();
  Place place;
  const auto to = reinterpret_cast<std::uintptr_t>(copy.to);
  if (!checking_ || !find(to, copy.bytes, Access::copy, copy.code, place)) return;
  place.shadow->set(place.offset, copy.bytes, asker_.now,
                    static_cast<std::uint32_t>(copy.code - code_base_));
}

}  // namespace quipu::emulator
