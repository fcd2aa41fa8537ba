// IDX files, by hand and gzipped.
#include "quipu/nn/data/idx.h"

#include <quipu/quipu.h>
#include <zlib.h>

#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

std::string idx_bytes(char code, const std::vector<std::uint32_t>& sizes,
                      const std::string& elements) {
  std::string bytes{'\0', '\0', code, static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(size >> shift & 0xff);
  }
  return bytes + elements;
}

}  // namespace

TEST_CASE("idx: bytes, wider types, gzip") {
  const TempDirectory directory;
  const std::string path = directory.file("images.idx");
  const std::string bytes = idx_bytes(0x08, {2, 2, 2}, std::string("\0\1\2\3\4\5\6\xff", 8));
  const Tensor wanted = from({0, 1, 2, 3, 4, 5, 6, 255}, {2, 2, 2}, u8);
  write_bytes(path, bytes);
  CHECK(same_bits(nn::read_idx(path), wanted));
  gzFile file = ::gzopen(path.c_str(), "wb");
  REQUIRE(::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) > 0);
  ::gzclose(file);
  CHECK(same_bits(nn::read_idx(path), wanted));

  write_bytes(path, idx_bytes(0x0b, {2}, std::string("\xff\xfe\1\0", 4)));
  CHECK(same_bits(nn::read_idx(path), from({-2, 256}, i32)));
  write_bytes(path, idx_bytes(0x09, {1}, "\x80"));
  CHECK(same_bits(nn::read_idx(path), from({-128}, i32)));
  write_bytes(path, idx_bytes(0x0e, {1}, std::string("\x3f\xf8\0\0\0\0\0\0", 8)));
  CHECK(same_bits(nn::read_idx(path), from({1.5})));
  // More than is read at once.
  std::string many(3'000'000, '\7');
  many.back() = '\1';
  write_bytes(path, idx_bytes(0x08, {3000, 1000}, many));
  const Tensor large = nn::read_idx(path);
  CHECK(large(2999, 999).item() == 1);
  CHECK(sum(large).item_int() == 7 * 2'999'999 + 1);
}

TEST_CASE("idx: malformed files are an error") {
  const TempDirectory directory;
  const std::string path = directory.file("x.idx");
  const std::pair<std::string, const char*> cases[] = {
      {"", "ends in its header"},
      {std::string("\0\0\x08", 3), "ends in its header"},
      {std::string("\1\0\x08\0x", 5), "this is no IDX file"},
      {idx_bytes(0x0a, {1}, "x"), "this is no IDX file"},
      {idx_bytes(0x08, {1, 1, 1, 1, 1, 1, 1, 1, 1}, "x"), "9 dimensions"},
      {idx_bytes(0x08, {4}, "123"), "ends in its elements"},
      {idx_bytes(0x08, {0xffffffff, 0x0fffffff}, "123"), "more elements than can be addressed"},
      {idx_bytes(0x08, {0xffffffff, 0x00ffffff}, "123"), "ends in its elements"},
      {idx_bytes(0x08, {2}, "123"), "goes on behind them"},
  };
  for (const auto& [bytes, message] : cases) {
    CAPTURE(message);
    write_bytes(path, bytes);
    expect_error([&] { nn::read_idx(path); }, "x.idx", message);
  }
  expect_error([&] { nn::read_idx(directory.file("none")); }, "none", "No such file");
}
