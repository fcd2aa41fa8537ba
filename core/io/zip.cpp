#include "quipu/core/io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "quipu/core/text.h"

namespace quipu::detail {
namespace {

constexpr std::uint32_t entry_mark = 0x04034b50, listed_mark = 0x02014b50, end_mark = 0x06054b50,
                        end64_mark = 0x06064b50, locator_mark = 0x07064b50;
constexpr std::size_t entry_bytes = 30, listed_bytes = 46, end_bytes = 22, end64_bytes = 56,
                      locator_bytes = 20, longest_comment = 65535;
constexpr std::uint32_t elsewhere = 0xffffffff;  // the number stands in an extra field of 64 bits
constexpr std::uint16_t extra64 = 1;
constexpr std::uint64_t most_inflated = 1032;  // times as many bytes as were stored, at the most

/// Little-endian numbers at places that were checked to be there.
class Bytes {
 public:
  Bytes(const std::string& path, std::string_view file) : path_(path), file_(file) {}

  template <class T>
  T number(std::uint64_t at) const {
    need(at, sizeof(T));
    T value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) {
      value = static_cast<T>(value << 8 | static_cast<unsigned char>(file_[at + i]));
    }
    return value;
  }
  std::uint16_t half(std::uint64_t at) const { return number<std::uint16_t>(at); }
  std::uint32_t word(std::uint64_t at) const { return number<std::uint32_t>(at); }
  std::uint64_t wide(std::uint64_t at) const {
    return word(at) | std::uint64_t{word(at + 4)} << 32;
  }
  std::string_view part(std::uint64_t at, std::uint64_t size) const {
    need(at, size);
    return file_.substr(at, size);
  }
  std::uint64_t size() const { return file_.size(); }

 private:
  void need(std::uint64_t at, std::uint64_t size) const {
    check(at <= file_.size() && size <= file_.size() - at, path_, ": byte ", at, " and ", size,
          " from there on reach past the end of the file (", file_.size(), " bytes)");
  }
  const std::string& path_;
  std::string_view file_;
};

struct Listing {
  std::uint64_t entries, offset;
};

/// The record at the end of the file, which a comment may follow.
Listing find_listing(const std::string& path, const Bytes& file) {
  check(file.size() >= end_bytes, path, ": this is no zip archive; it has ", file.size(), " bytes");
  const std::uint64_t last = file.size() - end_bytes;
  const std::uint64_t first = last > longest_comment ? last - longest_comment : 0;
  for (std::uint64_t at = last + 1; at-- > first;) {
    if (file.word(at) != end_mark || file.half(at + 20) != last - at) continue;
    const bool has_64 = at >= locator_bytes && file.word(at - locator_bytes) == locator_mark;
    if (!has_64) return {file.half(at + 10), file.word(at + 16)};
    const std::uint64_t at64 = file.wide(at - locator_bytes + 8);
    check(file.part(at64, end64_bytes).size() == end64_bytes && file.word(at64) == end64_mark, path,
          ": the 64-bit record of the archive's end is not where it should be");
    return {file.wide(at64 + 32), file.wide(at64 + 48)};
  }
  fail(path, ": this is no zip archive, or its end is missing");
}

/// Sizes and offset of an entry beyond 4 GiB, in their order.
void read_extra64(const std::string& path, const Bytes& file, std::uint64_t at, std::uint64_t end,
                  ZipEntry& entry) {
  std::array<std::uint64_t*, 3> wanted{};
  std::size_t count = 0;
  for (std::uint64_t* number : {&entry.size, &entry.stored_size, &entry.offset}) {
    if (*number == elsewhere) wanted[count++] = number;
  }
  if (count == 0) return;
  for (; at + 4 <= end; at += 4 + file.half(at + 2)) {
    if (file.half(at) != extra64) continue;
    check(file.half(at + 2) >= 8 * count && at + 4 + 8 * count <= end, path,
          ": the 64-bit sizes of ", quoted_name(entry.name), " are cut off");
    for (std::size_t i = 0; i < count; ++i) *wanted[i] = file.wide(at + 4 + 8 * i);
    return;
  }
  fail(path, ": the 64-bit sizes of ", quoted_name(entry.name), " are missing");
}

void check_entry(const std::string& path, const Bytes& file, const ZipEntry& entry, int flags,
                 int method) {
  const std::string name = quoted_name(entry.name);
  check((flags & 1) == 0, path, ": ", name, " is encrypted");
  check(method == 0 || method == 8, path, ": ", name, " is compressed by method ", method,
        "; 0 (stored) and 8 (deflated) are known");
  check(entry.deflated || entry.size == entry.stored_size, path, ": ", name, " is stored in ",
        entry.stored_size, " bytes, but has ", entry.size);
  check(entry.stored_size <= file.size() && entry.size / most_inflated <= entry.stored_size, path,
        ": ", name, " cannot have ", entry.size, " bytes in ", entry.stored_size);
}

}  // namespace

std::vector<ZipEntry> list_zip(const std::string& path, std::string_view bytes) {
  const Bytes file(path, bytes);
  const Listing listing = find_listing(path, file);
  check(listing.entries <= file.size() / listed_bytes, path, ": the archive cannot have ",
        listing.entries, " entries in ", file.size(), " bytes");
  std::vector<ZipEntry> entries;
  std::uint64_t at = listing.offset;
  for (std::uint64_t i = 0; i < listing.entries; ++i) {
    check(file.word(at) == listed_mark, path, ": entry ", i, " of the archive's list is broken");
    const std::uint64_t name = file.half(at + 28), extra = file.half(at + 30),
                        comment = file.half(at + 32);
    ZipEntry entry{std::string(file.part(at + listed_bytes, name)),
                   file.word(at + 24),
                   file.word(at + 20),
                   file.word(at + 42),
                   file.word(at + 16),
                   file.half(at + 10) == 8};
    file.part(at + listed_bytes + name, extra + comment);  // throws where they are not there
    const std::uint64_t extra_at = at + listed_bytes + name;
    read_extra64(path, file, extra_at, extra_at + extra, entry);
    check_entry(path, file, entry, file.half(at + 8), file.half(at + 10));
    entries.push_back(std::move(entry));
    at += listed_bytes + name + extra + comment;
  }
  return entries;
}

std::string_view read_zip_entry(const std::string& path, std::string_view bytes,
                                const ZipEntry& entry, std::string& buffer) {
  const Bytes file(path, bytes);
  const std::string name = quoted_name(entry.name);
  check(file.word(entry.offset) == entry_mark, path, ": ", name, " is not where the list says");
  const std::uint64_t begin =
      entry.offset + entry_bytes + file.half(entry.offset + 26) + file.half(entry.offset + 28);
  const std::string_view stored = file.part(begin, entry.stored_size);
  std::string_view contents = stored;
  if (entry.deflated) {
    buffer.assign(entry.size, '\0');
    z_stream stream{};
    check(inflateInit2(&stream, -MAX_WBITS) == Z_OK, path, ": zlib has no memory");
    // zlib counts in 32 bits.
    constexpr std::uint64_t most = std::numeric_limits<uInt>::max();
    std::uint64_t read = 0, made = 0;
    int code = Z_OK;
    while (code == Z_OK && made <= entry.size) {
      const std::uint64_t in = std::min(most, stored.size() - read);
      const std::uint64_t out = std::min(most, entry.size - made);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data() + read));
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data() + made);
      stream.avail_in = static_cast<uInt>(in);
      stream.avail_out = static_cast<uInt>(out);
      code = ::inflate(&stream, Z_NO_FLUSH);
      if (stream.avail_in == in && stream.avail_out == out) break;  // nothing moves any more
      read += in - stream.avail_in;
      made += out - stream.avail_out;
    }
    ::inflateEnd(&stream);
    check(code == Z_STREAM_END && made == entry.size, path, ": ", name, " does not inflate to its ",
          entry.size, " bytes");
    contents = buffer;
  }
  check(::crc32_z(0, reinterpret_cast<const Bytef*>(contents.data()), contents.size()) == entry.crc,
        path, ": the checksum of ", name, " is wrong; the file is damaged");
  return contents;
}

namespace {

template <class... T>
std::string little_endian(T... numbers) {
  std::string bytes;
  const auto add = [&](auto number) {
    for (std::size_t i = 0; i < sizeof number; ++i) {
      bytes += static_cast<char>(static_cast<std::uint64_t>(number) >> (8 * i) & 0xff);
    }
  };
  (add(numbers), ...);
  return bytes;
}
using Half = std::uint16_t;
using Word = std::uint32_t;

constexpr Half version = 45;  // of zip that knows 64-bit sizes
constexpr Half names_are_utf8 = 1 << 11;
constexpr Word no_date = 0x00210000;  // 1980-01-01

}  // namespace

void ZipWriter::put(const std::string& bytes) {
  file_.write(bytes.data(), bytes.size());
  written_ += bytes.size();
}

void ZipWriter::begin(const std::string& name, std::uint64_t size, std::uint32_t crc) {
  entries_.push_back({name, size, size, written_, crc, false});
  put(little_endian(entry_mark, version, names_are_utf8, Half{0}, no_date, crc, elsewhere,
                    elsewhere, static_cast<Half>(name.size()), Half{20}) +
      name + little_endian(extra64, Half{16}, size, size));
}

void ZipWriter::write(const void* data, std::size_t bytes) {
  file_.write(data, bytes);
  written_ += bytes;
}

void ZipWriter::finish() {
  const std::uint64_t listing = written_;
  for (const ZipEntry& e : entries_) {
    put(little_endian(listed_mark, version, version, names_are_utf8, Half{0}, no_date, e.crc,
                      elsewhere, elsewhere, static_cast<Half>(e.name.size()), Half{28}, Half{0},
                      Half{0}, Half{0}, Word{0}, elsewhere) +
        e.name + little_endian(extra64, Half{24}, e.size, e.size, e.offset));
  }
  const std::uint64_t bytes = written_ - listing, at64 = written_;
  const std::uint64_t count = entries_.size();
  const auto few = static_cast<Half>(std::min<std::uint64_t>(count, 0xffff));
  put(little_endian(end64_mark, std::uint64_t{end64_bytes - 12}, version, version, Word{0}, Word{0},
                    count, count, bytes, listing) +
      little_endian(locator_mark, Word{0}, at64, Word{1}) +
      little_endian(end_mark, Half{0}, Half{0}, few, few, elsewhere, elsewhere, Half{0}));
}

}  // namespace quipu::detail
