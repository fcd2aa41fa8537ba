// The file is two zeros, a type, a number of dimensions, their sizes and the elements, each with
// its most significant byte first. It is read through zlib, which passes plain files on as they
// are, and memory grows with what was read, not with what the header says.
#include "quipu/nn/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/io/npy_format.h"
#include "quipu/core/text.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

constexpr std::size_t piece = std::size_t{1} << 20;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path), file_(::gzopen(path.c_str(), "rbe")) {
    if (!file_) fail("cannot read ", path, ": ", std::generic_category().message(errno));
  }
  /// As many bytes as there are, up to n.
  std::size_t read(char* to, std::size_t n) {
    const int got = ::gzread(file_.get(), to, static_cast<unsigned>(std::min(n, piece)));
    int code = Z_OK;
    const char* const reason = ::gzerror(file_.get(), &code);
    check(got >= 0 && (code == Z_OK || code == Z_STREAM_END), "cannot read ", path_, ": ",
          code == Z_ERRNO ? std::generic_category().message(errno) : std::string(reason));
    return static_cast<std::size_t>(got);
  }
  /// Exactly n bytes.
  void read_all(char* to, std::size_t n, const char* what) {
    for (std::size_t done = 0; done < n;) {
      const std::size_t got = read(to + done, n - done);
      check(got > 0, path_, ": the file ends in its ", what);
      done += got;
    }
  }
  std::uint32_t size() {
    std::array<char, 4> bytes{};
    read_all(bytes.data(), bytes.size(), "header");
    std::uint32_t value = 0;
    for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
    return value;
  }

 private:
  struct Close {
    void operator()(gzFile file) const { ::gzclose(file); }
  };
  const std::string& path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

struct ElementType {
  std::size_t size;  // bytes
  int code;
  DType dtype;
};
constexpr ElementType types[] = {{1, 0x08, u8},  {1, 0x09, i32}, {2, 0x0b, i32},
                                 {4, 0x0c, i32}, {4, 0x0d, f32}, {8, 0x0e, f64}};

/// n elements in the order of this machine.
void convert(const ElementType& type, const char* from, std::size_t n, char* to) {
  const std::size_t out = size_of(type.dtype);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t bits = 0;
    for (std::size_t b = 0; b < type.size; ++b) {
      bits = bits << 8 | static_cast<unsigned char>(from[i * type.size + b]);
    }
    if (type.size < out) {  // the sign goes up
      const auto shift = static_cast<int>(64 - 8 * type.size);
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << shift) >> shift);
    }
    std::memcpy(to + i * out, &bits, out);
  }
}

}  // namespace

Tensor read_idx(const std::string& path) {
  const OpScope op("read_idx");
  Reader file(path);
  std::array<char, 4> start{};
  file.read_all(start.data(), start.size(), "header");
  const int code = static_cast<unsigned char>(start[2]),
            dims = static_cast<unsigned char>(start[3]);
  const auto* const type = std::find_if(std::begin(types), std::end(types),
                                        [&](const ElementType& t) { return t.code == code; });
  check(start[0] == 0 && start[1] == 0 && type != std::end(types), path,
        ": this is no IDX file, which begins with two zeros and a type");
  check(dims <= max_dims, path, ": the array has ", dims, " dimensions; a tensor has at most ",
        max_dims);
  Shape shape;
  for (int d = 0; d < dims; ++d) shape.push_back(file.size());
  const auto count = static_cast<std::size_t>(elements_of(path, shape));
  std::vector<Tensor> pieces;
  std::size_t read = 0;
  const std::size_t at_once = piece / type->size;
  std::vector<char> bytes(std::min(count, at_once) * type->size);
  while (read < count) {
    const std::size_t n = std::min(at_once, count - read);
    file.read_all(bytes.data(), n * type->size, "elements");
    const Tensor part = empty({static_cast<std::int64_t>(n)}, type->dtype);
    convert(*type, bytes.data(), n, static_cast<char*>(part.raw_data()));
    pieces.push_back(part);
    read += n;
  }
  char more = 0;
  check(file.read(&more, 1) == 0, path, ": shape ", shape, " takes ", count,
        " elements, but the file goes on behind them");
  const Tensor x = empty(shape, type->dtype);
  std::size_t at = 0;
  for (const Tensor& part : pieces) {
    std::memcpy(static_cast<char*>(x.raw_data()) + at, part.raw_data(), part.nbytes());
    at += part.nbytes();
  }
  return x;
}

}  // namespace quipu::nn
