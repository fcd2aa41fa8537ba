// The program's own write goes before that of the C library.
#include "small_disk.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace {

std::string full_folder;  // empty: none
std::size_t capacity = 0;

std::size_t bytes_in(const std::string& folder) {
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

extern "C" ssize_t write(int file, const void* data, std::size_t bytes) {
  static const auto next = reinterpret_cast<decltype(&::write)>(dlsym(RTLD_NEXT, "write"));
  if (!full_folder.empty() && bytes_in(full_folder) + bytes > capacity) {
    errno = ENOSPC;
    return -1;
  }
  return next(file, data, bytes);
}

namespace quipu::testing {

FullDisk::FullDisk(const std::string& folder, std::size_t bytes) {
  full_folder = folder;
  capacity = bytes;
}

FullDisk::~FullDisk() {
  full_folder.clear();
}

}  // namespace quipu::testing
