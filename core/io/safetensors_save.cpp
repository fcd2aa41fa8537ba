#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "quipu/core/context.h"
#include "quipu/core/io/atomic_file.h"
#include "quipu/core/io/safetensors_header.h"
#include "quipu/core/text.h"

namespace quipu {
using namespace detail;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

/// Text as a JSON string.
std::string to_json(const std::string& path, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(path, ": the name or text ", quoted_name(text), " is not UTF-8");
  }
}

/// The header's text, padded with spaces so that what follows it in the file is 64-aligned.
std::string header_text(const std::string& path, const SafetensorsHeader& header) {
  constexpr std::size_t alignment = 64, length_bytes = 8;
  std::string text = "{";
  const auto add_key = [&](const std::string& key) {
    if (text.back() != '{') text += ',';
    text += to_json(path, key);
    text += ':';
  };
  if (!header.metadata.empty()) {
    add_key(std::string(safetensors_metadata_key));
    text += '{';
    for (const auto& [key, value] : header.metadata) {
      add_key(key);
      text += to_json(path, value);
    }
    text += '}';
  }
  for (const TensorEntry& entry : header.entries) {
    add_key(entry.name);
    const nlohmann::json sizes(std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end()));
    text += detail::concat("{\"dtype\":\"", safetensors_name(entry.dtype),
                           "\",\"shape\":", sizes.dump(), ",\"data_offsets\":[", entry.begin, ",",
                           entry.end, "]}");
  }
  text += '}';
  text.append((alignment - (length_bytes + text.size()) % alignment) % alignment, ' ');
  check(text.size() <= max_safetensors_header, path, ": a header of ", text.size(),
        " bytes is too long; the format allows ", max_safetensors_header);
  return text;
}

void check_tensor(const std::string& path, const std::string& name, const Tensor& tensor) {
  check(name != safetensors_metadata_key, path, ": no tensor can have the name ", name);
  check(tensor.defined(), path, ": tensor ", quoted_name(name), " is undefined");
  check(!tensor.device().is_meta(), path, ": tensor ", quoted_name(name), " is on ",
        tensor.device(), " and has no values to write");
}

}  // namespace

void save_safetensors(const std::string& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata) {
  const OpScope scope("save_safetensors");
  for (const auto& [name, tensor] : tensors) check_tensor(path, name, tensor);
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return size_of(tensors[i].second.dtype()); });

  SafetensorsHeader header{metadata, {}};
  std::size_t end = 0;
  for (const std::size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    const std::size_t begin = end;
    end += tensor.nbytes();
    header.entries.push_back({name, tensor.dtype(), tensor.shape(), tensor.dim(), begin, end});
  }
  check_unique_names(path, header.entries);
  const std::string text = header_text(path, header);
  const std::uint64_t length = text.size();

  AtomicFile file(path);
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const std::size_t i : order) {  // one at a time: at most one copy lives at once
    const Tensor values = tensors[i].second.detach().to(Device()).contiguous();
    file.write(values.raw_data(), values.nbytes());
  }
  file.commit();
}

}  // namespace quipu
