#include "quipu/core/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "quipu/core/context.h"
#include "quipu/core/io/mapped_file.h"
#include "quipu/core/io/safetensors_header.h"
#include "quipu/core/text.h"

namespace quipu {
using namespace detail;

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

using HeaderLength = std::uint64_t;  // the first bytes of a file

std::string_view header_text(const std::string& path, const MappedFile& file) {
  HeaderLength length = 0;
  check(file.size() >= sizeof length, path, ": the file has ", file.size(),
        " bytes, not even the 8 that hold the length of the header");
  std::memcpy(&length, file.data(), sizeof length);
  check(length <= max_safetensors_header, path, ": a header of ", length,
        " bytes is too long; the format allows ", max_safetensors_header);
  check(length <= file.size() - sizeof length, path, ": a header of ", length,
        " bytes reaches past the end of the file (", file.size(), " bytes)");
  return {file.data() + sizeof length, static_cast<std::size_t>(length)};
}

/// The names of a file's tensors for a message; not all of them when there are many.
std::string list_names(const std::vector<TensorEntry>& entries) {
  constexpr std::size_t most = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(entries.size(), most); ++i) {
    text += (i ? ", " : "") + quoted_name(entries[i].name);
  }
  return entries.empty() ? "none" : text + (entries.size() > most ? ", ..." : "");
}

bool all_zero_or_one(const char* bytes, std::size_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == 0 || byte == 1; });
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const OpScope scope("safetensors");
  file_ = std::make_shared<const MappedFile>(path);
  const std::string_view text = header_text(path, *file_);
  char* const data = file_->data() + sizeof(HeaderLength) + text.size();
  data_ = data;
  const std::size_t data_bytes = file_->size() - sizeof(HeaderLength) - text.size();
  SafetensorsHeader header = parse_safetensors_header(path, text, data_bytes);
  metadata_ = std::move(header.metadata);
  entries_ = std::move(header.entries);

  storages_.reserve(entries_.size());
  for (const TensorEntry& entry : entries_) {
    char* const begin = data + entry.begin;
    const bool aligned = reinterpret_cast<std::uintptr_t>(begin) % size_of(entry.dtype) == 0;
    storages_.emplace_back(aligned ? new Storage(begin, entry.end - entry.begin, Device(), file_)
                                   : nullptr);
  }
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  const auto name_at = [&](std::size_t i) { return std::string_view(entries_[i].name); };
  std::ranges::sort(by_name_, {}, name_at);
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto name_at = [&](std::size_t i) { return std::string_view(entries_[i].name); };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_at);
  return found != by_name_.end() && name_at(*found) == name ? &entries_[*found] : nullptr;
}

Tensor SafetensorsFile::get(std::string_view name) const {
  const OpScope scope("safetensors");
  const TensorEntry* entry = find(name);
  if (!entry) {
    fail(path_, ": there is no tensor ", quoted_name(name), "; there are: ", list_names(entries_));
  }
  check(entry->dims <= max_dims, path_, ": tensor ", quoted_name(name), " has ", entry->dims,
        " dimensions; a tensor has at most ", max_dims);
  const Ref<Storage>& storage = storages_[static_cast<std::size_t>(entry - entries_.data())];
  const char* const bytes = data_ + entry->begin;
  const std::size_t count = entry->end - entry->begin;
  const bool sound = entry->dtype != boolean || all_zero_or_one(bytes, count);
  if (storage && sound) {
    return Tensor(storage, 0, entry->shape, contiguous_strides(entry->shape), entry->dtype);
  }
  const Tensor copy = empty(entry->shape, entry->dtype);
  if (!sound) {
    std::transform(bytes, bytes + count, copy.data<bool>(), [](char byte) { return byte != 0; });
  } else if (count > 0) {
    std::memcpy(copy.raw_data(), bytes, count);
  }
  return copy;
}

}  // namespace quipu
