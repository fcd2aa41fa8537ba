#include "quipu/nn/data/token_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quipu/core/context.h"
#include "quipu/core/io/mapped_file.h"

namespace quipu::nn {
using namespace quipu::detail;

namespace {

std::int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8: return 1;
    case TokenType::u16: return 2;
    case TokenType::i32: return 4;
    case TokenType::i64: break;
  }
  return 8;
}

template <class Id>
void widen(const char* from, std::int64_t count, std::int64_t* to) {
  for (std::int64_t i = 0; i < count; ++i, from += sizeof(Id)) {
    Id id;
    std::memcpy(&id, from, sizeof id);
    to[i] = static_cast<std::int64_t>(id);
  }
}

void widen(TokenType type, const char* from, std::int64_t count, std::int64_t* to) {
  switch (type) {
    case TokenType::u8: return widen<std::uint8_t>(from, count, to);
    case TokenType::u16: return widen<std::uint16_t>(from, count, to);
    case TokenType::i32: return widen<std::int32_t>(from, count, to);
    case TokenType::i64: return widen<std::int64_t>(from, count, to);
  }
}

}  // namespace

TokenFiles::TokenFiles(const std::vector<std::string>& paths, const TokenOptions& options)
    : options_(options) {
  const OpScope op("TokenFiles");
  check(!paths.empty(), "there is no file");
  check(options.sequence > 0 && options.sequence < std::int64_t{1} << 40, "sequence is ",
        options.sequence, ", but a window has at least one token and less than 2^40");
  check(options.stride >= 0, "stride is ", options.stride, ", but must not be negative");
  check_enum("type", options.type, TokenType::i64);
  check(options.vocabulary >= 0, "vocabulary is ", options.vocabulary,
        ", but must not be negative");
  if (options.stride == 0) options_.stride = options.sequence;
  const std::int64_t width = bytes_of(options.type);
  for (const std::string& path : paths) {
    auto bytes = std::make_shared<const MappedFile>(path);
    const auto size = static_cast<std::int64_t>(bytes->size());
    check(size % width == 0, path, ": the file has ", size, " bytes, which are no whole ids of ",
          width, " bytes each");
    files_.push_back({path, std::move(bytes), end_, end_ + size / width});
    end_ = files_.back().end;
  }
  check_size();
}

void TokenFiles::check_size() const {
  check(size() > 0, files_[0].path, files_.size() > 1 ? " and the other files hold " : " holds ",
        tokens(), " tokens, but a window of ", options_.sequence, " and its targets need ",
        options_.sequence + 1);
}

TokenFiles TokenFiles::part(double from, double to) const {
  const OpScope op("TokenFiles");
  check(from >= 0 && from < to && to <= 1, "the part from ", from, " to ", to,
        " is none; 0 <= from < to <= 1 is wanted");
  const auto place = [&](double share) {
    return begin_ + static_cast<std::int64_t>(std::floor(share * static_cast<double>(tokens())));
  };
  TokenFiles part = *this;
  part.begin_ = place(from);
  part.end_ = to == 1 ? end_ : place(to);
  part.check_size();
  return part;
}

std::int64_t TokenFiles::size() const {
  const std::int64_t last_begin = tokens() - options_.sequence - 1;
  return last_begin < 0 ? 0 : last_begin / options_.stride + 1;
}

Batch TokenFiles::make(std::int64_t count, Device device) const {
  const OpScope op("TokenFiles");
  return {empty({count, options_.sequence}, DType::i64, device),
          empty({count, options_.sequence}, DType::i64, device)};
}

void TokenFiles::fill(const Batch& batch, std::span<const std::int64_t> places) const {
  const OpScope op("TokenFiles");
  const std::int64_t n = options_.sequence;
  std::int64_t* inputs = batch[0].data<std::int64_t>();
  std::int64_t* targets = batch[1].data<std::int64_t>();
  for (const std::int64_t place : places) {
    const std::int64_t first = begin_ + place * options_.stride;
    read(first, n, inputs);
    std::copy(inputs + 1, inputs + n, targets);
    read(first + n, 1, targets + n - 1);
    inputs += n;
    targets += n;
  }
}

void TokenFiles::read(std::int64_t first, std::int64_t count, std::int64_t* to) const {
  const auto holds = [](std::int64_t token, const File& file) { return token < file.end; };
  auto file = std::upper_bound(files_.begin(), files_.end(), first, holds);
  for (; count > 0; ++file) {
    const std::int64_t here = std::min(count, file->end - first), at = first - file->begin;
    widen(options_.type, file->bytes->data() + at * bytes_of(options_.type), here, to);
    if (options_.vocabulary > 0) {
      const auto outside = [&](std::int64_t id) { return id < 0 || id >= options_.vocabulary; };
      const std::int64_t* const bad = std::find_if(to, to + here, outside);
      if (bad != to + here) {
        fail(file->path, ": token ", at + (bad - to), " is ", *bad, ", but ids lie in [0, ",
             options_.vocabulary, ")");
      }
    }
    first += here;
    count -= here;
    to += here;
  }
}

}  // namespace quipu::nn
