// Tensors in several files: what is written comes back, and an index that does not fit is an error.
#include "quipu/core/io/sharded_safetensors.h"

#include <quipu/quipu.h>

#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

TEST_CASE("sharded safetensors: what is written comes back") {
  const TempDirectory directory;
  const NamedTensors tensors = {{"a", randn({4, 4})},
                                {"b", randn({3})},
                                {"c", arange(9)},
                                {"d", zeros({0})},
                                {"e", randn({40})}};
  for (const std::size_t most :
       {std::size_t{0}, std::size_t{64}, std::size_t{100}, ~std::size_t{0}}) {
    const std::string path = save_sharded_safetensors(directory.file(""), "model", tensors, most);
    CHECK(path.ends_with("/model.safetensors.index.json"));
    const ShardedSafetensors files(path);
    CHECK(files.names() == std::vector<std::string>{"a", "b", "c", "d", "e"});
    for (const auto& [name, x] : tensors) CHECK(same_bits(files.get(name), x));
    CHECK(!files.contains("f"));
    expect_error([&] { files.get("f"); }, "index.json", "there is no tensor 'f'");
  }
  expect_error([&] { save_sharded_safetensors(directory.file(""), "x/y", tensors, 1); }, "stem",
               "'x/y'");
}

TEST_CASE("sharded safetensors: an index that does not fit is an error, and opens nothing else") {
  const TempDirectory directory;
  save_safetensors(directory.file("one.safetensors"), {{"a", ones({2})}, {"b", ones({2})}});
  const std::string path = directory.file("x.index.json");
  const std::pair<const char*, const char*> cases[] = {
      {"", "no JSON object"},
      {"[1]", "no JSON object"},
      {"{\"weight_map\": 3}", "has no \"weight_map\""},
      {R"({"weight_map": {"a": 3}})", "is not a name"},
      {R"({"weight_map": {"a": "../one.safetensors"}})", "only files beside the index"},
      {R"({"weight_map": {"a": "/etc/passwd"}})", "only files beside the index"},
      {R"({"weight_map": {"a": ".."}})", "only files beside the index"},
      {R"({"weight_map": {"a": "none.safetensors"}})", "none.safetensors"},
      {R"({"weight_map": {"c": "one.safetensors"}})", "'c' is not in one.safetensors"},
      {R"({"weight_map": {"a": "one.safetensors"}})", "'b' of one.safetensors is not in the index"},
  };
  for (const auto& [text, message] : cases) {
    CAPTURE(text);
    write_bytes(path, text);
    expect_error([&] { const ShardedSafetensors files(path); }, "safetensors", message);
  }
}

TEST_CASE("safetensors: a file with a tensor of nine dimensions opens") {
  const TempDirectory directory;
  const std::string path = directory.file("x.safetensors");
  write_bytes(path, safetensors_bytes(R"({"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,2,3],)"
                                      R"("data_offsets":[0,6]},"y":{"dtype":"U8","shape":[2],)"
                                      R"("data_offsets":[6,8]}})",
                                      "12345678"));
  const SafetensorsFile file(path);
  CHECK(file.entries()[0].dims == 9);
  CHECK(file.get("y").numel() == 2);
  expect_error([&] { file.get("x"); }, "x.safetensors", "has 9 dimensions");
}
