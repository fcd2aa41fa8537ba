#pragma once
// A whole file seen as memory. Internal to the library.
#include <cstddef>
#include <string>

namespace quipu::detail {

/// Maps a regular file privately: pages are read when touched, and writing changes this memory,
/// never the file. The file may be replaced or removed meanwhile, but must not be shortened.
class MappedFile {
 public:
  /// Throws Error with the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  char* data() const { return data_; }  // page-aligned; null for an empty file
  std::size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace quipu::detail
