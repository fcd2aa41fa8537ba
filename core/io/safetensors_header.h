#pragma once
// The header of a safetensors file: JSON that says for every tensor where its bytes lie.
//
//   {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
//   24]}, ...}
//
// The tensors fill the part after the header without gaps or overlaps. Internal to the library.
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quipu/core/io/safetensors.h"

namespace quipu::detail {

inline constexpr std::size_t max_safetensors_header = 100'000'000;  // the format's limit, in bytes
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

/// "F32", "BOOL", ...
const char* safetensors_name(DType dtype);

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> entries;  // in the order of their bytes
};

/// Throws Error, beginning with the path, unless all is right for `data_bytes` bytes after the
/// header. What it allocates is bounded by the length of the text, whatever the text says.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           std::size_t data_bytes);

/// Throws Error, beginning with the path, when two have the same name.
void check_unique_names(const std::string& path, const std::vector<TensorEntry>& entries);

}  // namespace quipu::detail
