#include "quipu/core/io/npy_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "quipu/core/text.h"

namespace quipu::detail {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t longest_header = 1 << 20;

/// How elements lie in a file.
struct ElementType {
  char kind;         // 'f', 'i', 'u' or 'b'
  std::size_t size;  // bytes
  bool swapped;      // the most significant byte comes first
};

struct Header {
  std::optional<ElementType> type;
  std::optional<bool> columns_first;
  std::optional<std::vector<std::int64_t>> shape;
};

/// Reads the dictionary; every mismatch is an Error with its place.
class HeaderReader {
 public:
  HeaderReader(const std::string& where, std::string_view text) : where_(where), text_(text) {}

  Header read() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !header.type) {
        header.type = type_of(quoted());
      } else if (key == "fortran_order" && !header.columns_first) {
        header.columns_first = truth();
      } else if (key == "shape" && !header.shape) {
        header.shape = tuple();
      } else {
        fail(where_, ": the header has the key ", quoted_name(std::string(key)),
             ", which is unknown or stands there twice");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    check(at_ == text_.size(), where_, ": byte ", at_, " of the header comes after its end");
    check(header.type && header.columns_first && header.shape, where_,
          ": the header lacks one of 'descr', 'fortran_order' and 'shape'");
    return header;
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) wrong(std::string("a '") + c + "'");
  }
  [[noreturn]] void wrong(const std::string& wanted) const {
    fail(where_, ": byte ", at_, " of the header should be ", wanted);
  }
  std::string_view quoted() {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : ' ';
    if (quote != '\'' && quote != '"') wrong("a quoted word");
    const std::size_t begin = at_ + 1, end = text_.find(quote, begin);
    if (end == text_.npos) wrong("a word whose quote is closed");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  bool truth() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair("True", true), std::pair("False", false)}) {
      const std::string_view name = word;
      if (text_.substr(at_, name.size()) != name) continue;
      at_ += name.size();
      return value;
    }
    wrong("True or False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      std::int64_t size = -1;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) wrong("a size");
      at_ += static_cast<std::size_t>(end - begin);
      sizes.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }
  ElementType type_of(std::string_view descr) const {
    const bool sound = descr.size() == 3 &&
                       std::string_view("<>|=").find(descr[0]) != std::string_view::npos &&
                       std::string_view("fiub").find(descr[1]) != std::string_view::npos &&
                       descr[2] >= '1' && descr[2] <= '8';
    check(sound, where_, ": elements of type ", quoted_name(std::string(descr)),
          " are none that a tensor can have");
    return {descr[1], static_cast<std::size_t>(descr[2] - '0'), descr[0] == '>'};
  }

  const std::string& where_;
  std::string_view text_;
  std::size_t at_ = 0;
};

/// The type that holds all values of another.
DType dtype_for(const std::string& where, const ElementType& type) {
  switch (type.kind) {
    case 'f':
      if (type.size == 8) return f64;
      if (type.size == 4) return f32;
      if (type.size == 2) return f16;
      break;
    case 'i':
      if (type.size == 8) return i64;
      if (type.size == 4 || type.size == 2 || type.size == 1) return i32;
      break;
    case 'u':
      if (type.size == 4) return i64;
      if (type.size == 2) return i32;
      if (type.size == 1) return u8;
      break;
    default:
      if (type.size == 1) return boolean;
  }
  fail(where, ": elements of type ", std::string(1, type.kind), type.size,
       " are none that a tensor can have");
}

/// An element as the unsigned number that its bytes are.
std::uint64_t bits_at(const char* from, const ElementType& type) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < type.size; ++i) {
    const std::size_t at = type.swapped ? i : type.size - 1 - i;
    bits = bits << 8 | static_cast<unsigned char>(from[at]);
  }
  return bits;
}

template <class T>
void copy_bits(const char* from, const ElementType& type, char* to, std::int64_t count) {
  const std::size_t shift = (64 - 8 * type.size) & 63;  // elements have 1 to 8 bytes
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = bits_at(from + static_cast<std::size_t>(i) * type.size, type);
    if (type.kind == 'i') {  // the sign goes up
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << shift) >>
                                        static_cast<int>(shift));
    }
    if (type.kind == 'b') bits = bits != 0;
    const T value = static_cast<T>(bits);
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }
}

void copy_elements(const char* from, const ElementType& type, const Tensor& to) {
  const bool as_it_lies = type.size == size_of(to.dtype()) && !type.swapped && type.kind != 'b';
  auto* const out = static_cast<char*>(to.raw_data());
  if (to.numel() == 0) return;
  if (as_it_lies) {
    std::memcpy(out, from, to.nbytes());
    return;
  }
  switch (size_of(to.dtype())) {
    case 8: return copy_bits<std::uint64_t>(from, type, out, to.numel());
    case 4: return copy_bits<std::uint32_t>(from, type, out, to.numel());
    case 2: return copy_bits<std::uint16_t>(from, type, out, to.numel());
    default: return copy_bits<std::uint8_t>(from, type, out, to.numel());
  }
}

/// Splits a file into its header's text and the elements.
std::pair<std::string_view, std::string_view> split(const std::string& where,
                                                    std::string_view bytes) {
  constexpr std::size_t version_end = magic.size() + 2;
  check(bytes.size() >= version_end && bytes.starts_with(magic), where,
        ": this is no .npy file, which begins with \\x93NUMPY");
  const int version = static_cast<unsigned char>(bytes[magic.size()]);
  check(version >= 1 && version <= 3, where, ": version ", version,
        " of the format is unknown; 1, 2 and 3 are known");
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  check(bytes.size() >= version_end + length_bytes, where, ": the file ends in its header");
  std::size_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[version_end + i]);
  }
  const std::size_t begin = version_end + length_bytes;
  check(length <= longest_header && length <= bytes.size() - begin, where, ": a header of ", length,
        " bytes is too long, or reaches past the end of the file");
  return {bytes.substr(begin, length), bytes.substr(begin + length)};
}

}  // namespace

std::int64_t elements_of(const std::string& where, const Shape& shape) {
  std::int64_t count = 1;
  bool fits = true, none = false;
  for (const std::int64_t size : shape) {
    none |= size == 0;
    fits = fits && (size == 0 || !__builtin_mul_overflow(count, size, &count));
  }
  check(fits && count <= std::int64_t{1} << 59, where, ": shape ", shape,
        " has more elements than can be addressed");
  return none ? 0 : count;
}

Tensor parse_npy(const std::string& where, std::string_view bytes) {
  const auto [text, elements] = split(where, bytes);
  const Header header = HeaderReader(where, text).read();
  check(header.shape->size() <= static_cast<std::size_t>(max_dims), where, ": the array has ",
        header.shape->size(), " dimensions; a tensor has at most ", max_dims);
  const Shape shape(*header.shape);
  const DType dtype = dtype_for(where, *header.type);
  const std::int64_t count = elements_of(where, shape);
  const std::size_t stored = elements.size() / header.type->size;
  check(stored == static_cast<std::size_t>(count) && elements.size() % header.type->size == 0,
        where, ": shape ", shape, " takes ", count, " elements of ", header.type->size,
        " bytes, but the file has ", elements.size(), " bytes of them");
  if (!*header.columns_first) {
    const Tensor x = empty(shape, dtype);
    copy_elements(elements.data(), *header.type, x);
    return x;
  }
  Shape reversed = shape;
  Dims order = shape;
  for (int d = 0; d < shape.size(); ++d) {
    reversed[d] = shape[shape.size() - 1 - d];
    order[d] = shape.size() - 1 - d;
  }
  const Tensor x = empty(reversed, dtype);
  copy_elements(elements.data(), *header.type, x);
  return x.permute(order).contiguous();
}

std::string npy_header(const std::string& where, const Tensor& x) {
  constexpr std::size_t alignment = 64;
  check(x.dtype() != bf16, where, ": NumPy has no bf16; convert the tensor with .to(f32)");
  const char kind = is_floating(x.dtype())   ? 'f'
                    : x.dtype() == boolean   ? 'b'
                    : x.dtype() == DType::u8 ? 'u'
                                             : 'i';
  const std::size_t size = size_of(x.dtype());
  std::string text = concat("{'descr': '", size == 1 ? '|' : '<', kind, size,
                            "', 'fortran_order': False, 'shape': (");
  for (int d = 0; d < x.dim(); ++d) text += concat(d ? ", " : "", x.size(d));
  text += x.dim() == 1 ? ",), }" : "), }";
  const std::size_t before = magic.size() + 2 + 2 + text.size() + 1;
  text.append((alignment - before % alignment) % alignment, ' ');
  text += '\n';
  std::string header(magic);
  header += '\1';
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace quipu::detail
