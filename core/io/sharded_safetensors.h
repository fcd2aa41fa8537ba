#pragma once
// Tensors in several safetensors files, with an index that says which one is where.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/io/safetensors.h"

namespace quipu {

/// Files that belong together, as large models are published: an index, `*.index.json`, with a
/// "weight_map" from the names of tensors to the names of files beside it. They are opened as
/// SafetensorsFile says.
class ShardedSafetensors {
 public:
  /// `path` is that of the index. Throws Error, with the path, unless every tensor of the index is
  /// in its file, and the files have no others.
  explicit ShardedSafetensors(const std::string& path);
  ShardedSafetensors(ShardedSafetensors&&) = default;
  ShardedSafetensors& operator=(ShardedSafetensors&&) = default;

  /// In alphabetical order.
  std::vector<std::string> names() const;
  /// Whether get(name) would find a tensor.
  bool contains(std::string_view name) const { return places_.find(name) != places_.end(); }
  /// As SafetensorsFile::get.
  Tensor get(std::string_view name) const;

 private:
  std::string path_;
  std::map<std::string, SafetensorsFile> files_;  // by their names
  std::map<std::string, const SafetensorsFile*, std::less<>> places_;
};

/// Writes tensors into files of at most `most_bytes` of values each (but for one that is larger by
/// itself), "<stem>-00001-of-00003.safetensors" and so on, and then the index
/// "<stem>.safetensors.index.json" into `folder`, which exists. Returns the path of the index,
/// which is written last: until then readers see what was there before.
std::string save_sharded_safetensors(const std::string& folder, const std::string& stem,
                                     const NamedTensors& tensors, std::size_t most_bytes);

}  // namespace quipu
