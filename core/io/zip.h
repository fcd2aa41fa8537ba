#pragma once
// Zip archives, as far as .npz files need them: entries stored or deflated, archives beyond 4 GiB.
// Internal to the library.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/io/atomic_file.h"

namespace quipu::detail {

struct ZipEntry {
  std::string name;
  std::uint64_t size = 0;         // of its contents
  std::uint64_t stored_size = 0;  // in the archive
  std::uint64_t offset = 0;       // of its own header
  std::uint32_t crc = 0;
  bool deflated = false;
};

/// The list of contents at the end of an archive. Throws Error, beginning with the path, unless
/// every entry lies within the file and can be read by read_zip_entry.
std::vector<ZipEntry> list_zip(const std::string& path, std::string_view file);
/// The contents of an entry: a part of the file if it is stored, else inflated into `buffer`.
/// Throws Error where sizes or the checksum do not fit.
std::string_view read_zip_entry(const std::string& path, std::string_view file,
                                const ZipEntry& entry, std::string& buffer);

/// Writes an archive of stored entries.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  /// The contents come in pieces, of which there are `size` bytes with this checksum.
  void begin(const std::string& name, std::uint64_t size, std::uint32_t crc);
  void write(const void* data, std::size_t bytes);
  /// The list of contents; nothing is written after it.
  void finish();

 private:
  void put(const std::string& bytes);
  AtomicFile& file_;
  std::uint64_t written_ = 0;
  std::vector<ZipEntry> entries_;
};

}  // namespace quipu::detail
