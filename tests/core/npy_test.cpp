// NumPy's files: what is written comes back, files that NumPy wrote are read, and damaged ones are
// an error.
#include "quipu/core/io/npy.h"

#include <quipu/quipu.h>

#include <random>

#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

/// An .npy file of version 1 with this header's text.
std::string npy_bytes(const std::string& text, const std::string& elements) {
  std::string bytes = "\x93NUMPY";
  bytes += {'\1', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return bytes + text + elements;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// numpy.savez_compressed of x, (3, 40) float32 of 1.5, and y, a bool without dimensions.
const char* const compressed =
    "504b03042d000000080000002100ab54463fffffffffffffffff05001400782e6e7079010010006002000000000000"
    "4f"
    "000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f9492"
    "0a"
    "12774bcc294e058a17672416a402f91ac63a0a26069a3a0ab50ae4022e068603f6a378f86200504b03042d00000008"
    "00"
    "00002100822df8d3ffffffffffffffff05001400792e6e707901001000810000000000000043000000000000009bec"
    "17"
    "ea1b10c9c850c650ad9e925a9c5ca46ea5a05e9364a8aea3a09e965f54529498179f5f94920a12774bcc294e058a17"
    "67"
    "2416a402f91a9a3a0ab50a14012e4600504b01022d032d000000080000002100ab54463f4f00000060020000050000"
    "00"
    "0000000000000000800100000000782e6e7079504b01022d032d000000080000002100822df8d34300000081000000"
    "05"
    "0000000000000000000000800186000000792e6e7079504b0506000000000200020066000000000100000000";

}  // namespace

TEST_CASE("npy: what is written comes back") {
  const TempDirectory directory;
  const std::string path = directory.file("x.npy");
  for (const DType dtype : {f64, f32, f16, i64, i32, u8, boolean}) {
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{2, 3, 5}, Shape{3, 0}, Shape{1, 1}}) {
      const Tensor x = randint(0, dtype == boolean ? 2 : 200, shape).to(dtype);
      save_npy(path, x);
      CHECK(same_bits(load_npy(path), x));
      CHECK(read_bytes(path).find('\n') % 64 == 63);  // elements begin at multiples of 64 bytes
    }
  }
  const Tensor strided = randn({5, 7}).t();
  save_npy(path, strided);
  CHECK(same_bits(load_npy(path), strided.contiguous()));
  expect_error([&] { save_npy(path, ones({2}, bf16)); }, "save_npy", "NumPy has no bf16");
  expect_error([&] { save_npy(path, empty({2}, f32, "meta:cpu")); }, "save_npy", "meta:cpu");
  CHECK(same_bits(load_npy(path), strided.contiguous()));  // still there
}

TEST_CASE("npy: columns first, other types and byte orders") {
  const TempDirectory directory;
  const std::string path = directory.file("x.npy");
  const auto read = [&](const std::string& text, const std::string& elements) {
    write_bytes(path, npy_bytes(text, elements));
    return load_npy(path);
  };
  const std::string by_columns("\xfe\xff\x01\x00\xff\xff\x02\x00\x00\x00\x03\x00", 12);
  const Tensor x =
      read("{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }  \n", by_columns);
  CHECK(same_bits(x, from({-2, -1, 0, 1, 2, 3}, {2, 3}, i32)));
  const Tensor swapped = read("{'shape':(1,),\"descr\":'>f8','fortran_order':False}",
                              std::string("\x3f\xf8\0\0\0\0\0\0", 8));
  CHECK(same_bits(swapped, from({1.5})));
  CHECK(
      same_bits(read("{'descr': '<u4', 'fortran_order': False, 'shape': (), }", "\xff\xff\xff\xff"),
                full({}, std::int64_t{4294967295}, i64)));
  CHECK(same_bits(
      read("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", std::string("\2\0", 2)),
      from({1, 0}, boolean)));
}

TEST_CASE("npy: archives") {
  const TempDirectory directory;
  const std::string path = directory.file("x.npz");
  const NamedTensors tensors = {
      {"weights", randn({3, 5})}, {"größe", arange(7)}, {"none", zeros({0, 2})}};
  save_npz(path, tensors);
  const NamedTensors back = load_npz(path);
  REQUIRE(back.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(back[i].first == tensors[i].first);
    CHECK(same_bits(back[i].second, tensors[i].second));
  }
  save_npz(path, {});
  CHECK(load_npz(path).empty());
  expect_error([&] { save_npz(path, {{"a", ones({1})}, {"a", ones({1})}}); }, "save_npz", "twice");

  write_bytes(path, from_hex(compressed));
  const NamedTensors written_by_numpy = load_npz(path);
  REQUIRE(written_by_numpy.size() == 2);
  CHECK(same_bits(written_by_numpy[0].second, full({3, 40}, 1.5)));
  CHECK(same_bits(written_by_numpy[1].second, full({}, true, boolean)));
}

TEST_CASE("npy: malformed files are an error that names the path and the place") {
  const TempDirectory directory;
  const std::string path = directory.file("x.npy");
  const std::string sound = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
  const std::pair<std::string, const char*> cases[] = {
      {"", "this is no .npy file"},
      {"\x93NUMPY", "this is no .npy file"},
      {std::string("\x93NUMPY\x09\0", 8), "version 9"},
      {std::string("\x93NUMPY\x01\0\xff\xff", 10), "a header of 65535 bytes"},
      {npy_bytes(sound, "1234567"), "the file has 7 bytes"},
      {npy_bytes(sound, "123456789"), "the file has 9 bytes"},
      {npy_bytes("{'descr': '<f4', 'shape': (2,), }", ""), "lacks one of"},
      {npy_bytes("{'descr': '<f4', 'descr': '<f4'}", ""), "stands there twice"},
      {npy_bytes("{'descr': '<c8', 'fortran_order': False, 'shape': ()}", ""), "'<c8'"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", ""), "True or False"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", ""), "a size"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "1234"),
       "9 dimensions"},
      {npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,2)}", ""),
       "9223372036854775807"},
      {npy_bytes(sound + " x", ""), "after its end"},
  };
  for (const auto& [bytes, message] : cases) {
    CAPTURE(message);
    write_bytes(path, bytes);
    expect_error([&] { load_npy(path); }, "x.npy", message);
  }
}

TEST_CASE("npy: any changed byte of an archive is an error or changes nothing that is checked") {
  const TempDirectory directory;
  const std::string path = directory.file("x.npz");
  const std::string sound = from_hex(compressed);
  std::mt19937 random(1);
  int errors = 0;
  for (std::size_t i = 0; i < sound.size(); ++i) {
    std::string bytes = sound;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << random() % 8));
    write_bytes(path, bytes);
    try {
      for (const auto& [name, x] : load_npz(path)) {
        CHECK(same_bits(x, x.dim() == 0 ? full({}, true, boolean) : full({3, 40}, 1.5)));
      }
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("x.npz") != std::string::npos);
      ++errors;
    }
    write_bytes(path, sound.substr(0, i));  // and any file that was cut off
    CHECK_THROWS_AS(load_npz(path), Error);
  }
  CHECK(errors > 220);  // names, dates and versions are free
}
