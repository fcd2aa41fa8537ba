// Reading is driven by events and builds no JSON tree: what does not belong where it stands ends
// the reading at once, so neither nesting nor numbers can make it recurse or allocate.
#include "quipu/core/io/safetensors_header.h"
#include "quipu/core/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "quipu/core/error.h"

namespace quipu::detail {

namespace {

constexpr std::array<const char*, 3> field_names = {"dtype", "shape", "data_offsets"};
constexpr std::array<const char*, 8> dtype_names = {"F64", "F32", "BF16", "F16",
                                                    "I64", "I32", "U8",   "BOOL"};

/// Nothing when it does not fit, not even beside a size of zero: strides are products of the
/// others.
std::optional<std::size_t> byte_size(const Shape& shape, DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (const std::int64_t size : shape) {
    empty = empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return empty ? 0 : static_cast<std::size_t>(bytes);
}

std::string range(std::size_t begin, std::size_t end) {
  return detail::concat("[", begin, ", ", end, ")");
}

/// The part of the library's message that says what is wrong, without the text that was read.
std::string reason_of(std::string_view message) {
  for (const std::string_view lead : {"] ", " - "}) {
    const std::size_t at = message.find(lead);
    if (at != message.npos) message.remove_prefix(at + lead.size());
  }
  return std::string(message.substr(0, std::min<std::size_t>(message.find("; last read"), 100)));
}

/// Takes the parser's events and collects entries.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, std::size_t data_bytes)
      : path_(path), data_bytes_(data_bytes) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool null() { unexpected("null"); }
  bool boolean(bool value) { unexpected(value ? "true" : "false"); }
  bool binary(std::vector<std::uint8_t>&) { unexpected("binary data"); }
  bool number_float(double, const std::string& text) { unexpected(quoted_name(text)); }
  bool number_integer(std::int64_t value) {
    if (value < 0) unexpected(std::to_string(value));
    return number_unsigned(static_cast<std::uint64_t>(value));
  }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& text);
  bool start_object(std::size_t);
  bool key(std::string& text);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) {
    fail(path_, ": the header is not JSON at its byte ", position, ": ", reason_of(error.what()));
  }

 private:
  enum class Place { outside, header, metadata, entry, shape, offsets };
  enum Field : std::size_t { dtype, shape, offsets };

  std::string expectation() const;  // what may stand at this place
  [[noreturn]] void unexpected(std::string_view found) const {
    fail(path_, ": ", expectation(), ", but ", found, " was found");
  }
  template <class... Parts>
  void check_tensor(bool ok, const Parts&... parts) const {
    if (!ok) fail(path_, ": tensor ", quoted_name(entry_.name), parts...);
  }
  void finish_entry();

  const std::string& path_;
  const std::size_t data_bytes_;
  SafetensorsHeader header_;
  bool has_metadata_ = false;
  Place place_ = Place::outside;
  TensorEntry entry_;           // being read
  Field field_ = dtype;         // of the entry
  std::array<bool, 3> seen_{};  // fields of the entry
  int offset_count_ = 0;
  std::string metadata_name_;
};

std::string HeaderReader::expectation() const {
  const std::string name = quoted_name(entry_.name);
  switch (place_) {
    case Place::outside: return "the header must be an object";
    case Place::header: return "the entry " + name + " must be an object";
    case Place::metadata: return "metadata " + quoted_name(metadata_name_) + " must be a string";
    case Place::shape: return "each size of tensor " + name + " must be a whole number below 2^63";
    case Place::offsets:
      return "each offset of tensor " + name + " must be a whole number below 2^64";
    case Place::entry: break;
  }
  return detail::concat(field_names[field_], " of tensor ", name, " must be ",
                        field_ == dtype ? "a string" : "a list of numbers");
}

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (place_ == Place::shape) {
    if (value > std::numeric_limits<std::int64_t>::max()) unexpected(std::to_string(value));
    const auto size = static_cast<std::int64_t>(value);
    if (++entry_.dims <= max_dims) {
      entry_.shape.push_back(size);
    } else {
      std::int64_t& last = entry_.shape[max_dims - 1];
      check_tensor(!__builtin_mul_overflow(last, size, &last), " is too large to be addressed");
    }
  } else if (place_ == Place::offsets) {
    check_tensor(offset_count_ < 2, " has more than two data_offsets");
    (offset_count_++ == 0 ? entry_.begin : entry_.end) = value;
  } else {
    unexpected(std::to_string(value));
  }
  return true;
}

bool HeaderReader::string(std::string& text) {
  if (place_ == Place::metadata) {
    const bool is_new = header_.metadata.emplace(metadata_name_, std::move(text)).second;
    check(is_new, path_, ": metadata ", quoted_name(metadata_name_), " is given twice");
  } else if (place_ == Place::entry && field_ == dtype) {
    const auto found = std::find(dtype_names.begin(), dtype_names.end(), text);
    check_tensor(found != dtype_names.end(), " has dtype ", quoted_name(text),
                 "; known are F64, F32, BF16, F16, I64, I32, U8 and BOOL");
    entry_.dtype = static_cast<DType>(found - dtype_names.begin());
  } else {
    unexpected("a string");
  }
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (place_ == Place::outside) {
    place_ = Place::header;
  } else if (place_ != Place::header) {
    unexpected("an object");
  } else if (entry_.name == safetensors_metadata_key) {
    check(!has_metadata_, path_, ": ", safetensors_metadata_key, " is given twice");
    has_metadata_ = true;
    place_ = Place::metadata;
  } else {
    place_ = Place::entry;
  }
  return true;
}

bool HeaderReader::key(std::string& text) {
  if (place_ == Place::header) {
    entry_ = {};
    entry_.name = std::move(text);
    seen_ = {};
    offset_count_ = 0;
  } else if (place_ == Place::metadata) {
    metadata_name_ = std::move(text);
  } else {
    const auto found = std::find(field_names.begin(), field_names.end(), text);
    check_tensor(found != field_names.end(), " has an unknown field ", quoted_name(text));
    field_ = static_cast<Field>(found - field_names.begin());
    check_tensor(!seen_[field_], " has two fields ", field_names[field_]);
    seen_[field_] = true;
  }
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::entry) finish_entry();
  place_ = place_ == Place::header ? Place::outside : Place::header;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (place_ != Place::entry || field_ == dtype) unexpected("a list");
  place_ = field_ == shape ? Place::shape : Place::offsets;
  return true;
}

bool HeaderReader::end_array() {
  check_tensor(place_ == Place::shape || offset_count_ == 2, " has less than two data_offsets");
  place_ = Place::entry;
  return true;
}

void HeaderReader::finish_entry() {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    check_tensor(seen_[i], " has no field ", field_names[i]);
  }
  const std::string offsets_text = range(entry_.begin, entry_.end);
  check_tensor(entry_.begin <= entry_.end, " has data_offsets ", offsets_text,
               " that end before they begin");
  check_tensor(entry_.end <= data_bytes_, " has data_offsets ", offsets_text,
               ", past the end of the data (", data_bytes_, " bytes follow the header)");
  const std::optional<std::size_t> bytes = byte_size(entry_.shape, entry_.dtype);
  check_tensor(bytes.has_value(), " has shape ", entry_.shape, ", too large to be addressed");
  check_tensor(*bytes == entry_.end - entry_.begin, " has shape ", entry_.shape, " of ",
               safetensors_name(entry_.dtype), ", which takes ", *bytes,
               " bytes, but its data_offsets ", offsets_text, " hold ", entry_.end - entry_.begin);
  header_.entries.push_back(std::move(entry_));
}

/// Sorts them by where they lie and makes sure that they fill the data.
void check_layout(const std::string& path, std::vector<TensorEntry>& entries,
                  std::size_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](auto& a, auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const TensorEntry* before = nullptr;
  std::size_t filled = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin < filled) {
      fail(path, ": tensors ", quoted_name(before->name), " at ", range(before->begin, before->end),
           " and ", quoted_name(entry.name), " at ", range(entry.begin, entry.end), " overlap");
    }
    check(entry.begin == filled, path, ": no tensor holds the bytes ", range(filled, entry.begin),
          " before ", quoted_name(entry.name));
    filled = entry.end;
    before = &entry;
  }
  check(filled == data_bytes, path, ": no tensor holds the bytes ", range(filled, data_bytes),
        " at the end");
}

}  // namespace

const char* safetensors_name(DType dtype) {
  return dtype_names[static_cast<std::size_t>(dtype)];
}

void check_unique_names(const std::string& path, const std::vector<TensorEntry>& entries) {
  std::vector<std::string_view> names;
  for (const TensorEntry& entry : entries) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto twin = std::ranges::adjacent_find(names);
  if (twin != names.end()) fail(path, ": tensor ", quoted_name(*twin), " is given twice");
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           std::size_t data_bytes) {
  check(!text.empty(), path, ": the header is empty");
  check(text[0] == '{', path, ": the header must be an object, but does not begin with '{'");
  // The parser takes a zero byte for the end of the text.
  const std::size_t zero = text.find('\0');
  check(zero == text.npos, path, ": the header is not JSON at its byte ", zero + 1,
        ": a zero byte");
  HeaderReader reader(path, data_bytes);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = reader.take();
  check_unique_names(path, header.entries);
  check_layout(path, header.entries, data_bytes);
  return header;
}

}  // namespace quipu::detail
