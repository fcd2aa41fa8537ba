// What is written comes back, and what is read leaves the file alone.
#include <cstring>

#include "quipu/autograd/tape.h"
#include "quipu/core/io/safetensors.h"
#include "quipu/core/memory/memory.h"
#include "support/safetensors_files.h"
#include "support/small_disk.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

constexpr DType all_dtypes[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

Tensor some_values(const Shape& shape, DType dtype, Device device = {}) {
  return randint(0, dtype == boolean ? 2 : 200, shape, i64, device).to(dtype);
}

void check_round_trip(const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {}) {
  const TempDirectory directory;
  const std::string path = directory.file("tensors.safetensors");
  save_safetensors(path, tensors, metadata);
  const SafetensorsFile file(path);
  CHECK(file.metadata() == metadata);
  CHECK(file.entries().size() == tensors.size());
  for (const auto& entry : tensors) {
    CAPTURE(entry.first);
    CAPTURE(to_string(entry.second));
    REQUIRE(file.contains(entry.first));
    const Tensor back = file.get(entry.first);
    CHECK(back.device() == cpu);
    CHECK(back.is_contiguous());
    CHECK(same_bits(back, entry.second.to(cpu)));
  }
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "safetensors: every dtype and shape comes back") {
  const Shape shapes[] = {{}, {1}, {7}, {0}, {2, 0, 3}, {2, 3}, {33, 65}, {1, 2, 1, 3, 1, 2, 1, 2}};
  for (const DType dtype : all_dtypes) {
    NamedTensors tensors;
    for (const Shape& shape : shapes) {
      tensors.emplace_back(to_string(shape), some_values(shape, dtype, device));
    }
    check_round_trip(tensors);
  }
}

TEST_CASE("safetensors: dtypes of any mixture are mapped without a copy") {
  const TempDirectory directory;
  const std::string path = directory.file("mixed.safetensors");
  NamedTensors tensors;
  for (int i = 0; i < 3; ++i) {
    for (const DType dtype : {u8, bf16, f64, boolean, i32, f16, f32, i64}) {
      tensors.emplace_back(detail::concat(dtype, i), some_values({3}, dtype));
    }
  }
  check_round_trip(tensors, {{"made by", "a test"}});
  save_safetensors(path, tensors);
  const SafetensorsFile file(path);
  const std::size_t before = memory_stats().allocations;
  for (const TensorEntry& entry : file.entries()) file.get(entry.name);
  CHECK(memory_stats().allocations == before);
}

TEST_CASE_FIXTURE(EachDevice, "safetensors: strided tensors are written as they look") {
  const Tensor x = some_values({4, 6, 5}, f32, device);
  check_round_trip({{"whole", x},
                    {"transposed", x.transpose(0, 2)},
                    {"permuted", x.permute({1, 2, 0})},
                    {"sliced", x.slice(1, 1, 6, 2)},
                    {"selected", x.select(2, 3)},
                    {"row", x[2][1]},
                    {"expanded", x.select(0, 1).unsqueeze(1).expand({6, 3, 5})},
                    {"empty slice", x.slice(0, 2, 2)}});
}

TEST_CASE("safetensors: names and metadata of any text") {
  const std::string texts[] = {"",
                               "layer.0.weight",
                               "a \"quoted\\ name\"",
                               "line\nbreak\ttab\x01",
                               std::string("zero\0byte", 9),
                               "Größe/λ/重み/🪢",
                               std::string(5000, 'n')};
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
  for (const std::string& text : texts) {
    tensors.emplace_back(text, some_values({2}, f32));
    metadata[text] = text;
  }
  check_round_trip(tensors, metadata);
  check_round_trip({});
  check_round_trip({}, {{"only", "metadata"}});
}

TEST_CASE("safetensors: the bytes of a file") {
  const TempDirectory directory;
  const std::string path = directory.file("small.safetensors");
  save_safetensors(path, {{"a", from<std::uint8_t>({1, 2})}, {"b", from<std::int32_t>({3})}},
                   {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})";
  const std::string padding(64 - (8 + header.size()) % 64, ' ');
  CHECK(read_bytes(path) == safetensors_bytes(header + padding, std::string("\3\0\0\0\1\2", 6)));

  const SafetensorsFile file(path);
  REQUIRE(file.entries().size() == 2);
  CHECK(file.entries()[1].name == "a");
  CHECK(file.entries()[1].dtype == u8);
  CHECK(file.entries()[1].shape == Shape{2});
  CHECK(file.entries()[1].begin == 4);
  CHECK(file.entries()[1].end == 6);
}

TEST_CASE("safetensors: a tensor outlives its file and never changes it") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  const Tensor x = some_values({1000}, f64);
  save_safetensors(path, {{"x", x}});
  const std::string bytes = read_bytes(path);
  Tensor mapped;
  {
    const SafetensorsFile file(path);
    mapped = file.get("x");
    CHECK(file.get("x").data<double>() == mapped.data<double>());
  }
  mapped.data<double>()[0] += 1;
  CHECK(read_bytes(path) == bytes);
  CHECK(SafetensorsFile(path).get("x").data<double>()[0] == x.data<double>()[0]);

  save_safetensors(path, {{"x", zeros({3})}});  // replaces the file, not what is mapped
  std::filesystem::remove(path);
  CHECK(mapped.data<double>()[0] == x.data<double>()[0] + 1);
  CHECK(same_bits(mapped.slice(0, 1), x.slice(0, 1)));
}

TEST_CASE("safetensors: a file can be copied onto itself") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  save_safetensors(path, {{"x", some_values({100}, f32)}});
  const std::string bytes = read_bytes(path);
  save_safetensors(path, {{"x", SafetensorsFile(path).get("x")}});
  CHECK(read_bytes(path) == bytes);
}

TEST_CASE("safetensors: unaligned tensors are copied") {
  const TempDirectory directory;
  const std::string path = directory.file("unaligned.safetensors");
  const double values[] = {1.5, -2.5};
  std::string data = "\7";
  data.append(reinterpret_cast<const char*>(values), sizeof values);
  write_bytes(path, safetensors_bytes(R"({"b":{"dtype":"F64","shape":[2],"data_offsets":[1,17]},)"
                                      R"("e":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},)"
                                      R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})",
                                      data));
  const SafetensorsFile file(path);
  CHECK(file.get("a").item() == 7);
  CHECK(same_bits(file.get("b"), from({1.5, -2.5})));
  CHECK(same_bits(file.get("e"), zeros({0}, f64)));
}

TEST_CASE("safetensors: every byte but zero is true") {
  const TempDirectory directory;
  const std::string path = directory.file("bool.safetensors");
  write_bytes(path, safetensors_bytes(R"({"b":{"dtype":"BOOL","shape":[5],"data_offsets":[0,5]}})",
                                      std::string("\0\1\2\x80\xff", 5)));
  const Tensor b = SafetensorsFile(path).get("b");
  CHECK(b.to_vector() == std::vector<double>{0, 1, 1, 1, 1});
  const std::uint8_t bytes[] = {0, 1, 1, 1, 1};
  CHECK(std::memcmp(b.raw_data(), bytes, sizeof bytes) == 0);
}

TEST_CASE("safetensors: saving is not recorded") {
  const TempDirectory directory;
  const Tensor x = some_values({3, 4}, f32).t().set_requires_grad();
  const Tape tape;
  save_safetensors(directory.file("x.safetensors"), {{"x", x}});
  CHECK(tape.size() == 0);
}

TEST_CASE("safetensors: what cannot be saved says why") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  const Tensor x = zeros({2, 2});
  const auto refused = [&](const NamedTensors& tensors, const testing::Expected& part) {
    expect_error([&] { save_safetensors(path, tensors); }, part, "save_safetensors", path);
  };
  refused({{"x", x}, {"y", x}, {"x", x}}, "'x' is given twice");
  refused({{"__metadata__", x}}, "no tensor can have the name __metadata__");
  refused({{"x", empty({2}, f32, "meta:cpu")}}, "'x' is on meta:cpu and has no values");
  refused({{"x", Tensor()}}, "'x' is undefined");
  refused({{"bad \xff", x}}, "is not UTF-8");
  expect_error([&] { save_safetensors(path, {{"x", x}}, {{"k", "\xc3"}}); }, "is not UTF-8");
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("safetensors: a failed save leaves the old file and nothing else") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  save_safetensors(path, {{"x", zeros({4})}});
  const std::string bytes = read_bytes(path);
  const NamedTensors large{{"x", zeros({1000})}};
  const std::optional<std::string> message = thrown_message<Error>([&] {
    const SmallDisk disk(1000);
    save_safetensors(path, large);
  });
  check_message(message, "File too large", {"save_safetensors: cannot write", path});
  CHECK(read_bytes(path) == bytes);

  const std::string missing = directory.file("no/such/folder.safetensors");
  expect_error([&] { save_safetensors(missing, {}); }, "No such file or directory", missing);
  const std::string folder = directory.path().string();
  expect_error([&] { save_safetensors(folder, {}); }, "not a regular file", folder);
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("safetensors: what cannot be opened or found says why") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  expect_error([&] { SafetensorsFile file(path); }, "No such file or directory",
               "safetensors: ", path);
  expect_error([&] { SafetensorsFile file(directory.path().string()); }, "not a regular file");
  save_safetensors(path, {{"weight", zeros({2})}, {"bias", zeros({2})}});
  const SafetensorsFile file(path);
  CHECK(!file.contains("weigh"));
  CHECK(!file.contains("weights"));
  expect_error([&] { file.get("scale"); }, "no tensor 'scale'", path, "'weight', 'bias'");
}
