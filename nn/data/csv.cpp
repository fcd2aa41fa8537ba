// Lines are read through zlib, which passes plain files on as they are. Rows are parsed straight
// into pieces of about a megabyte, which are joined when the number of rows is known; so all memory
// that grows with the file is in the ledger.
#include "quipu/nn/data/csv.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

#include "quipu/core/context.h"
#include "quipu/core/text.h"

namespace quipu::nn {
using namespace quipu::detail;

namespace {

constexpr std::size_t read_bytes = std::size_t{1} << 18;
constexpr std::size_t longest_line = std::size_t{1} << 26;
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
// A short gzip file can say any number of them, and names take far more memory than their commas.
constexpr std::size_t most_columns = std::size_t{1} << 20;

/// The lines of a file, one by one.
class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), file_(::gzopen(path.c_str(), "rbe")) {
    if (!file_) fail("cannot read ", path, ": ", std::generic_category().message(errno));
    ::gzbuffer(file_.get(), read_bytes);
  }

  /// False at the end. The line is valid until the next call.
  bool next(std::string_view& line) {
    for (std::size_t searched = 0;;) {
      const std::size_t end = buffer_.find('\n', begin_ + searched);
      if (end != buffer_.npos) {
        take(line, end, end + 1);
        return true;
      }
      searched = buffer_.size() - begin_;
      check(searched <= longest_line, path_, " line ", number_ + 1, ": the line is longer than ",
            longest_line, " bytes");
      if (!read_more()) break;
    }
    if (begin_ == buffer_.size()) return false;
    take(line, buffer_.size(), buffer_.size());
    return true;
  }

  std::size_t number() const { return number_; }  // of the line that was read last, from 1

 private:
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };

  void take(std::string_view& line, std::size_t end, std::size_t next_begin) {
    line = std::string_view(buffer_).substr(begin_, end - begin_);
    begin_ = next_begin;
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number_ == 1 && line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  }

  bool read_more() {
    buffer_.erase(0, std::exchange(begin_, 0));
    const std::size_t old = buffer_.size();
    buffer_.resize(old + read_bytes);
    errno = 0;
    const int got = ::gzread(file_.get(), buffer_.data() + old, read_bytes);
    int code = Z_OK;
    const char* const reason = ::gzerror(file_.get(), &code);
    // A file that ends too early is reported only after the last bytes that it gave.
    if (got < 0 || code == Z_BUF_ERROR) {
      if (code == Z_ERRNO)
        fail("cannot read ", path_, ": ", std::generic_category().message(errno));
      fail("cannot read ", path_, " after line ", number_, ": ",
           code == Z_BUF_ERROR ? "the gzip data is cut off" : reason);
    }
    buffer_.resize(old + static_cast<std::size_t>(got));
    return got > 0;
  }

  const std::string& path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what no line has yet
  std::size_t number_ = 0;
};

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Where in the file something is wrong.
struct Place {
  const std::string& path;
  std::size_t line;
  std::size_t column;

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(path, " line ", line, ", column ", column, ": ", parts...);
  }
};

/// Cuts the next field off `rest`; `more` says whether one follows. Quoted text that holds ""
/// is put together in `unquoted`.
std::string_view next_field(std::string_view& rest, char separator, bool& more,
                            std::string& unquoted, const Place& place) {
  std::string_view text = rest;
  while (!text.empty() && is_blank(text.front()) && text.front() != separator)
    text.remove_prefix(1);
  if (text.empty() || text.front() != '"') {
    const std::size_t end = rest.find(separator);
    more = end != rest.npos;
    const std::string_view field = rest.substr(0, end);
    rest.remove_prefix(more ? end + 1 : rest.size());
    return trimmed(field);
  }
  unquoted.clear();
  std::size_t i = 1;
  for (;; ++i) {
    if (i >= text.size()) place.fail_here("the quote is not closed on its line");
    if (text[i] == '"' && (i + 1 == text.size() || text[i + 1] != '"')) break;
    if (text[i] == '"') ++i;
    unquoted += text[i];
  }
  text.remove_prefix(i + 1);
  const std::size_t end = text.find(separator);
  const std::string_view behind = text.substr(0, end);
  if (!trimmed(behind).empty()) place.fail_here(quoted_name(behind), " follows a closing quote");
  more = end != text.npos;
  rest = more ? text.substr(end + 1) : std::string_view();
  return trimmed(unquoted);
}

template <class T>
T parse(std::string_view field, const Place& place) {
  if (field.empty()) place.fail_here("the field is empty");
  std::string_view digits = field;
  if (digits.size() > 1 && digits[0] == '+' && digits[1] != '-') digits.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  constexpr const char* kind = std::is_floating_point_v<T> ? "number" : "whole number";
  const bool whole = end == digits.data() + digits.size();
  if (error == std::errc::invalid_argument || !whole) {
    place.fail_here(quoted_name(field), " is not a ", kind,
                    place.line == 1 ? " (set header if the first line names the columns)" : "");
  }
  if (error != std::errc()) place.fail_here(quoted_name(field), " is out of range");
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) place.fail_here(quoted_name(field), " is not a finite number");
  }
  return value;
}

void parse_into(char* to, DType dtype, std::string_view field, const Place& place) {
  if (dtype == DType::i64) {
    const auto value = parse<std::int64_t>(field, place);
    std::memcpy(to, &value, sizeof value);
  } else if (dtype == DType::f64) {
    const auto value = parse<double>(field, place);
    std::memcpy(to, &value, sizeof value);
  } else {
    const auto value = static_cast<float>(parse<double>(field, place));
    if (!std::isfinite(value)) place.fail_here(quoted_name(field), " is out of the range of f32");
    std::memcpy(to, &value, sizeof value);
  }
}

/// Rows that are appended one by one.
class Rows {
 public:
  Rows(std::size_t columns, DType dtype)
      : columns_(columns),
        dtype_(dtype),
        rows_a_piece_(std::max<std::size_t>(1, piece_bytes / (columns * size_of(dtype)))) {}

  /// Memory for one more row.
  char* append() {
    const std::size_t in_piece = count_++ % rows_a_piece_;
    if (in_piece == 0) pieces_.push_back(workspace(shape(rows_a_piece_), dtype_, cpu));
    return static_cast<char*>(pieces_.back().raw_data()) + in_piece * columns_ * size_of(dtype_);
  }
  Tensor joined() const {
    Tensor all = empty(shape(count_), dtype_);
    const std::size_t piece = rows_a_piece_ * columns_ * size_of(dtype_);
    char* to = static_cast<char*>(all.raw_data());
    std::size_t left = all.nbytes();
    for (const Tensor& rows : pieces_) {
      const std::size_t bytes = std::min(left, piece);
      std::memcpy(to, rows.raw_data(), bytes);
      to += bytes;
      left -= bytes;
    }
    return all;
  }
  std::size_t columns() const { return columns_; }

 private:
  Shape shape(std::size_t rows) const {
    return {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns_)};
  }
  std::size_t columns_;
  DType dtype_;
  std::size_t rows_a_piece_;
  std::size_t count_ = 0;
  std::vector<Tensor> pieces_;
};

/// Calls f(field, place) for each field of a line and returns how many there are.
template <class F>
std::size_t for_each_field(std::string_view line, char separator, Place place, F&& f) {
  std::string unquoted;
  bool more = true;
  for (; more; ++place.column) {
    check(place.column <= most_columns, place.path, " line ", place.line,
          ": the line has more than ", most_columns, " columns");
    const std::string_view field = next_field(line, separator, more, unquoted, place);
    f(field, place);
  }
  return place.column - 1;
}

void read_row(std::string_view line, const Place& place, const CsvOptions& options, Rows& rows) {
  char* to = nullptr;
  const std::size_t count =
      for_each_field(line, options.separator, place, [&](std::string_view field, const Place& at) {
        if (at.column == 1) to = rows.append();
        if (at.column > rows.columns()) return;
        parse_into(to, options.dtype, field, at);
        to += size_of(options.dtype);
      });
  check(count == rows.columns(), place.path, " line ", place.line, ": the row has ", count,
        count == 1 ? " column" : " columns", ", but ", rows.columns(), " are wanted");
}

}  // namespace

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  const OpScope op("read_csv");
  check(options.dtype == f32 || options.dtype == f64 || options.dtype == i64, "dtype is ",
        options.dtype, ", but f32, f64 or i64 is wanted");
  check(std::string_view("\"\r\n.+-").find(options.separator) == std::string_view::npos &&
            !std::isalnum(static_cast<unsigned char>(options.separator)),
        "the separator ", quoted_name(std::string(1, options.separator)),
        " could be part of a field or line");
  Lines lines(path);
  CsvTable table;
  std::unique_ptr<Rows> rows;
  for (std::string_view line; lines.next(line);) {
    if (trimmed(line).empty() && line.find(options.separator) == line.npos) continue;
    const Place place{path, lines.number(), 1};
    if (options.header && !rows && table.columns.empty()) {
      for_each_field(line, options.separator, place, [&](std::string_view field, const Place&) {
        table.columns.emplace_back(field);
      });
      continue;
    }
    if (!rows) {
      const std::size_t columns =
          options.header ? table.columns.size()
                         : for_each_field(line, options.separator, place, [](auto&&...) {});
      rows = std::make_unique<Rows>(columns, options.dtype);
    }
    read_row(line, place, options, *rows);
  }
  check(lines.number() > 0, path, ": the file is empty");
  check(rows != nullptr, path, ": the file has no rows of numbers");
  table.values = rows->joined();
  return table;
}

}  // namespace quipu::nn
