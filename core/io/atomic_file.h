#pragma once
// A file that appears under its name when it is complete, or not at all. Internal to the library.
#include <cstddef>
#include <string>

#include "quipu/core/error.h"

namespace quipu::detail {

/// A file could not be written because the disk, or the user's share of it, is full.
class DiskFull : public Error {
 public:
  using Error::Error;
};

/// Writes to a temporary file beside `path`, which `commit` brings to disk and renames; without
/// `commit` it is removed again. Readers see the old file or the new one, never a part. Everything
/// throws Error with the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail_with_errno() const;

  std::string path_;
  std::string temporary_;  // empty once it is renamed
  int fd_ = -1;
};

}  // namespace quipu::detail
