#pragma once
// Tensors in a file, in the safetensors format: a header that names them, then their bytes.
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu {

namespace detail {
class MappedFile;
}

/// Where one tensor of a file lies: bytes [begin, end) of the part after the header.
struct TensorEntry {
  std::string name;          // unique within the file
  DType dtype = DType::f32;  // of the values as stored
  Shape shape;               // row-major; () for a single value
  int dims = 0;           // of the file; more than a tensor can have are one in `shape`, its last
  std::size_t begin = 0;  // bytes, from the end of the header
  std::size_t end = 0;    // one past its last byte
};

/// A file that is mapped into memory: opening it reads the header, values are read when they are
/// touched. While it is in use the file may be replaced or removed, but must not be shortened.
class SafetensorsFile {
 public:
  /// Throws Error, with the path and the place, when the file is not exactly what the format wants.
  explicit SafetensorsFile(const std::string& path);

  /// In the order of their bytes.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// The free text of the header, by key; empty when the file has none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Whether get(name) would find a tensor.
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  /// On the CPU. It shares the mapping, also with other tensors got by this name, and keeps it
  /// alive: writing to it changes memory, never the file. Such memory is outside the ledger; a
  /// clone() is inside. Where the bytes are not aligned, or bools are not 0 or 1, it is a copy. One
  /// of more dimensions than a tensor can have is an error.
  Tensor get(std::string_view name) const;

 private:
  const TensorEntry* find(std::string_view name) const;

  std::string path_;
  std::shared_ptr<const detail::MappedFile> file_;
  const char* data_ = nullptr;  // of the part after the header
  std::map<std::string, std::string> metadata_;
  std::vector<TensorEntry> entries_;
  std::vector<detail::Ref<detail::Storage>>
      storages_;                      // beside entries_; empty where a copy is needed
  std::vector<std::size_t> by_name_;  // positions in entries_, sorted by name
};

/// What a file shall hold, in the wanted order. Names must differ.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// Writes all tensors, or leaves what was at `path` as it was and throws Error. Larger element
/// types come first, so that every tensor is aligned; otherwise the order is kept. Meta tensors
/// have no values: an error.
void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace quipu
