// Files that are not what they should be: an error that says what is wrong and where, nothing else.
#include <sys/resource.h>

#include "quipu/core/io/safetensors.h"
#include "quipu/core/memory/memory.h"
#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

struct Malformed {
  std::string bytes;
  const char* message;
};

std::string length_only(std::uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length);
}

/// One tensor x with these fields, and 8 bytes of data.
std::string one(const std::string& fields) {
  return safetensors_bytes("{\"x\":{" + fields + "}}", "12345678");
}

/// Tensor x of type U8 with this shape and these offsets, and 8 bytes of data.
std::string placed(const std::string& shape, const std::string& offsets) {
  return one("\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}

/// U8 tensors a and b with these offsets and sizes, and 8 bytes of data.
std::string pair(const std::string& a, int size_a, const std::string& b, int size_b) {
  const auto entry = [](const char* name, const std::string& offsets, int size) {
    return detail::concat("\"", name, "\":{\"dtype\":\"U8\",\"shape\":[", size,
                          "],\"data_offsets\":", offsets, "}");
  };
  const std::string header =
      detail::concat("{", entry("a", a, size_a), ",", entry("b", b, size_b), "}");
  return safetensors_bytes(header, "12345678");
}

std::string text(const std::string& header) {
  return safetensors_bytes(header);
}

const std::string dtype = R"("dtype":"F32")", shape = R"("shape":[2])",
                  offsets = R"("data_offsets":[0,8])";
const std::string entry = "{" + dtype + "," + shape + "," + offsets + "}";

std::vector<Malformed> length_cases() {
  return {{"", "the file has 0 bytes"},
          {"1234567", "the file has 7 bytes"},
          {length_only(2), "a header of 2 bytes reaches past the end of the file (8 bytes)"},
          {length_only(100'000'000), "a header of 100000000 bytes reaches past the end"},
          {length_only(100'000'001), "a header of 100000001 bytes is too long"},
          {length_only(~std::uint64_t{0}), "a header of 18446744073709551615 bytes is too long"},
          {length_only(0), "the header is empty"}};
}

std::vector<Malformed> json_cases() {
  const std::string deep(200'000, '['), objects = [] {
    std::string nested;
    for (int i = 0; i < 50'000; ++i) nested += "{\"a\":";
    return nested;
  }();
  return {{text("hello"), "must be an object, but does not begin with '{'"},
          {text("[1,2]"), "must be an object, but does not begin with '{'"},
          {text(" {}"), "must be an object, but does not begin with '{'"},
          {text("\xef\xbb\xbf{}"), "must be an object"},
          {text("{"), "not JSON at its byte 2: "},
          {text("{\"x"), "missing closing quote"},
          {text("{\"x\":nil}"), "not JSON at its byte 7: invalid literal"},
          {text("{}x"), "not JSON at its byte 3: invalid literal"},
          {text("{}{}"), "not JSON at its byte 3: unexpected '{'"},
          {text("{,}"), "not JSON at its byte 2: unexpected ','"},
          {text("{}//"), "not JSON at its byte 3"},
          {text(std::string("{}\0garbage", 10)), "not JSON at its byte 3: a zero byte"},
          {text("{\"\xff\":1}"), "ill-formed UTF-8"},
          {text("{\"\xc0\xaf\":1}"), "ill-formed UTF-8"},
          {text("{\"\\ud800\":1}"), "surrogate"},
          {text("{\"a\nb\":1}"), "control character"},
          {text("{\"x\":" + deep), "the entry 'x' must be an object, but a list was found"},
          {text(objects), "tensor 'a' has an unknown field 'a'"},
          {text("{\"x\":{\"shape\":" + deep), "each size of tensor 'x' must be a whole number"},
          {text("{\"x\":{\"shape\":[1e999"), "number overflow"}};
}

std::vector<Malformed> field_cases() {
  return {
      {text(R"({"x":1})"), "the entry 'x' must be an object, but 1 was found"},
      {text(R"({"x":-1})"), "the entry 'x' must be an object, but -1 was found"},
      {text(R"({"x":null})"), "but null was found"},
      {text(R"({"x":true})"), "but true was found"},
      {one(""), "tensor 'x' has no field dtype"},
      {one(dtype + "," + shape), "tensor 'x' has no field data_offsets"},
      {one(dtype + "," + offsets), "tensor 'x' has no field shape"},
      {one(shape + "," + offsets), "tensor 'x' has no field dtype"},
      {one(dtype + "," + shape + "," + offsets + R"(,"more":1)"),
       "tensor 'x' has an unknown field 'more'"},
      {one(dtype + "," + dtype), "tensor 'x' has two fields dtype"},
      {one(shape + "," + shape), "tensor 'x' has two fields shape"},
      {one(offsets + "," + offsets), "tensor 'x' has two fields data_offsets"},
      {one(R"("dtype":"F33")"), "tensor 'x' has dtype 'F33'; known are F64,"},
      {one(R"("dtype":"f32")"), "tensor 'x' has dtype 'f32'"},
      {one(R"("dtype":5)"), "dtype of tensor 'x' must be a string, but 5 was found"},
      {one(R"("dtype":["F32"])"), "dtype of tensor 'x' must be a string, but a list was found"},
      {one(R"("shape":8)"), "shape of tensor 'x' must be a list of numbers, but 8 was found"},
      {one(R"("shape":{})"),
       "shape of tensor 'x' must be a list of numbers, but an object was found"},
      {one(R"("data_offsets":"0")"),
       "data_offsets of tensor 'x' must be a list of numbers, but a string"},
      {safetensors_bytes("{\"x\":" + entry + ",\"x\":" + entry + "}", "12345678"),
       "'x' is given twice"},
      {text(R"({"__metadata__":[]})"), "the entry '__metadata__' must be an object, but a list"},
      {text(R"({"__metadata__":{"k":1}})"), "metadata 'k' must be a string, but 1 was found"},
      {text(R"({"__metadata__":{"k":null}})"), "metadata 'k' must be a string, but null"},
      {text(R"({"__metadata__":{"k":{}}})"), "metadata 'k' must be a string, but an object"},
      {text(R"({"__metadata__":{"k":"1","k":"2"}})"), "metadata 'k' is given twice"},
      {text(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ is given twice"}};
}

std::vector<Malformed> number_cases() {
  return {
      {placed("[8]", "[0]"), "tensor 'x' has less than two data_offsets"},
      {placed("[8]", "[]"), "tensor 'x' has less than two data_offsets"},
      {placed("[8]", "[0,8,8]"), "tensor 'x' has more than two data_offsets"},
      {placed("[8]", "[0,8.0]"),
       "each offset of tensor 'x' must be a whole number below 2^64, but '8.0'"},
      {placed("[8]", "[-1,7]"),
       "each offset of tensor 'x' must be a whole number below 2^64, but -1"},
      {placed("[8]", "[0,18446744073709551616]"), "but '18446744073709551616' was found"},
      {placed("[8]", "[8,0]"), "tensor 'x' has data_offsets [8, 0) that end before they begin"},
      {placed("[9]", "[0,9]"),
       "data_offsets [0, 9), past the end of the data (8 bytes follow the header)"},
      {placed("[8]", "[18446744073709551608,18446744073709551615]"), "past the end of the data"},
      {placed("[7]", "[0,8]"),
       "shape (7,) of U8, which takes 7 bytes, but its data_offsets [0, 8) hold 8"},
      {placed("[]", "[0,8]"), "which takes 1 bytes"},
      {placed("[2,0]", "[0,8]"), "which takes 0 bytes"},
      {placed("[-8]", "[0,8]"),
       "each size of tensor 'x' must be a whole number below 2^63, but -8 was found"},
      {placed("[8.5]", "[0,8]"), "but '8.5' was found"},
      {placed("[8e0]", "[0,8]"), "but '8e0' was found"},
      {placed("[\"8\"]", "[0,8]"),
       "each size of tensor 'x' must be a whole number below 2^63, but a string"},
      {placed("[[8]]", "[0,8]"), "but a list was found"},
      {placed("[9223372036854775808]", "[0,8]"), "but 9223372036854775808 was found"},
      {placed("[9223372036854775807]", "[0,8]"), "which takes 9223372036854775807 bytes"},
      {placed("[4294967296,4294967296]", "[0,0]"), "too large to be addressed"},
      {placed("[4294967296,2147483648,2,0]", "[0,0]"), "too large to be addressed"},
      {one(R"("dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8])"),
       "too large to be addressed"},
      {placed("[1,1,1,1,1,1,1,3,3]", "[0,8]"), "which takes 9 bytes"},
      {placed("[1,1,1,1,1,1,1,4294967296,4294967296]", "[0,8]"), "is too large to be addressed"},
      {placed("[" + std::string(1'000'000, '1') + "]", "[0,8]"), "number overflow"},
      {pair("[0,5]", 5, "[4,8]", 4), "tensors 'a' at [0, 5) and 'b' at [4, 8) overlap"},
      {pair("[0,8]", 8, "[0,8]", 8), "tensors 'a' at [0, 8) and 'b' at [0, 8) overlap"},
      {pair("[0,8]", 8, "[4,4]", 0), "overlap"},
      {pair("[0,3]", 3, "[4,8]", 4), "no tensor holds the bytes [3, 4) before 'b'"},
      {pair("[4,8]", 4, "[1,4]", 3), "no tensor holds the bytes [0, 1) before 'b'"},
      {pair("[0,4]", 4, "[4,7]", 3), "no tensor holds the bytes [7, 8) at the end"},
      {safetensors_bytes("{}", "12345678"), "no tensor holds the bytes [0, 8) at the end"}};
}

/// Whether this process still maps a file in `folder`.
bool is_mapped(const std::string& folder) {
  return read_bytes("/proc/self/maps").find(folder) != std::string::npos;
}

long peak_kilobytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// Opens a file and reads all that it holds: true, or false after an Error.
bool reads(const std::string& path) {
  try {
    const SafetensorsFile file(path);
    for (const TensorEntry& tensor : file.entries()) file.get(tensor.name).to_vector();
    return true;
  } catch (const Error&) {
    return false;
  }
}

constexpr std::size_t sound_data_bytes = 3 * 8 + 2 * 2 * 2 + 5;

void save_sound_file(const std::string& path) {
  save_safetensors(path,
                   {{"a", ones({3}, f64)}, {"λ", ones({2, 2}, bf16)}, {"c", ones({5}, boolean)}},
                   {{"key", "value"}});
}

}  // namespace

TEST_CASE("safetensors: a malformed file says what is wrong and where") {
  const TempDirectory directory;
  const std::string path = directory.file("malformed.safetensors");
  const long before = peak_kilobytes();
  for (const auto& cases : {length_cases(), json_cases(), field_cases(), number_cases()}) {
    for (const Malformed& malformed : cases) {
      CAPTURE(malformed.message);
      write_bytes(path, malformed.bytes);
      const std::optional<std::string> message =
          thrown_message<Error>([&] { SafetensorsFile file(path); });
      check_message(message, malformed.message, {"safetensors: ", path});
      CHECK(message.value_or("").size() < path.size() + 300);
    }
  }
  CHECK(!is_mapped(directory.path().string()));
  CHECK(peak_kilobytes() - before < 64 * 1024);
}

TEST_CASE("safetensors: what is unusual but allowed is read") {
  const TempDirectory directory;
  const std::string path = directory.file("unusual.safetensors");
  const std::string sound[] = {
      text("{}"),
      text("{} \n\t\r "),
      text(R"({"__metadata__":{}})"),
      text(R"({"x":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}})"),
      text(R"({"x":{"dtype":"F64","shape":[4294967296,0],"data_offsets":[0,0]}})"),
      placed("[ 8 ]", "[ 0 , 8 ]"),
      placed("[1,1,1,1,1,1,1,8]", "[0,8]"),
      one(offsets + "," + shape + "," + dtype),
      pair("[4,8]", 4, "[0,4]", 4),
      pair("[0,8]", 8, "[8,8]", 0),
      pair("[0,8]", 8, "[0,0]", 0),
      safetensors_bytes("{\"x\":" + entry + R"(,"__metadata__":{"last":"\u00fc"}})", "12345678")};
  for (const std::string& bytes : sound) {
    CAPTURE(bytes);
    write_bytes(path, bytes);
    CHECK(reads(path));
  }
}

TEST_CASE("safetensors: a file cut anywhere is an error") {
  const TempDirectory directory;
  const std::string path = directory.file("cut.safetensors");
  save_sound_file(path);
  CHECK(reads(path));
  for (std::size_t length = std::filesystem::file_size(path); length-- > 0;) {
    CAPTURE(length);
    std::filesystem::resize_file(path, length);
    CHECK(!reads(path));
  }
}

TEST_CASE("safetensors: any flipped bit of the header is an error or another sound header") {
  const TempDirectory directory;
  const std::string path = directory.file("flipped.safetensors");
  save_sound_file(path);
  const std::string bytes = read_bytes(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, int byte) {
    file.seekp(static_cast<std::streamoff>(at)).put(static_cast<char>(byte)).flush();
  };
  const std::size_t held = memory_stats().current;
  int sound = 0, errors = 0;
  for (std::size_t i = 0; i < bytes.size() - sound_data_bytes; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      put(i, bytes[i] ^ (1 << bit));
      ++(reads(path) ? sound : errors);
    }
    put(i, bytes[i]);
  }
  CHECK(reads(path));
  CHECK(sound > 50);  // letters of names
  CHECK(errors > 500);
  CHECK(memory_stats().current == held);
  CHECK(!is_mapped(directory.path().string()));
}
