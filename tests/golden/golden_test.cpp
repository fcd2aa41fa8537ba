// The golden cases: inputs, upstream gradient, output and gradients in f64, one file each; the
// operator and its arguments are in the metadata. Read from tests/golden and from the directories
// that QUIPU_GOLDEN_DIR names, with colons between them. Every case runs on every device, forward
// and backward, in every variant of its operator:
//
//   f64        within 1e-10 of what the row's entries are summed from (golden_sizes.h)
//   f32        within 2e-5 of it
//   bf16, f16  against the f64 result of the rounded inputs: 2 units in the last place for
//              elementwise operators and rotations, a few epsilon of what the row's entries are
//              summed from for softmax and sums (accuracy.h)
//
// and beside that what the rounding of angles to f32 moves, and what underflow may lose.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "golden_case.h"
#include "quipu/core/io/safetensors.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::testing;

namespace {

/// Those of the repository, and those of the environment.
std::vector<std::string> golden_directories() {
  std::vector<std::string> directories{QUIPU_GOLDEN_CASES};
  const char* more = std::getenv("QUIPU_GOLDEN_DIR");
  std::istringstream names(more ? more : "");
  for (std::string name; std::getline(names, name, ':');) {
    if (!name.empty()) directories.push_back(name);
  }
  return directories;
}

/// The cases of a directory, in order. None is an error.
std::vector<std::string> golden_files(const std::string& directory) {
  check(std::filesystem::is_directory(directory), "there is no directory ", directory,
        " of golden cases");
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  check(!files.empty(), directory, " holds no golden cases");
  std::sort(files.begin(), files.end());
  return files;
}

int passed = 0;

void run_directory(const std::string& directory) {
  for (const std::string& path : golden_files(directory)) {
    std::size_t wrong = 0;
    for (const Device& device : test_devices()) {
      const std::vector<std::string> failures = failures_of(path, device);
      for (const std::string& failure : failures) FAIL_CHECK(failure);
      wrong += failures.size();
    }
    CHECK(wrong == 0);
    if (wrong == 0) ++passed;
  }
}

/// A golden case to spoil.
class Spoiled {
 public:
  Spoiled() : file_(QUIPU_GOLDEN_CASES "/024_lrpe_rotate.safetensors") {
    for (const TensorEntry& entry : file_.entries()) {
      tensors.emplace_back(entry.name, file_.get(entry.name).clone());
    }
    metadata = file_.metadata();
  }
  /// Returns where it lies.
  std::string save() const {
    const std::string path = directory_.file("case.safetensors");
    save_safetensors(path, tensors, metadata);
    return path;
  }

  NamedTensors tensors;
  std::map<std::string, std::string> metadata;

 private:
  SafetensorsFile file_;
  TempDirectory directory_;
};

/// The first failure says so.
void expect_failure(const std::vector<std::string>& failures, const std::string& text) {
  REQUIRE(!failures.empty());
  CHECK_MESSAGE(failures[0].find(text) != std::string::npos, failures[0]);
}

}  // namespace

TEST_CASE("golden: every case, on every device") {
  // Said when the program ends, as its last words.
  std::atexit([] { std::cout << passed << " golden cases passed" << std::endl; });
  for (const std::string& directory : golden_directories()) {
    try {
      run_directory(directory);
    } catch (const Error& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
}

TEST_CASE_FIXTURE(EachDevice, "golden: one wrong value fails its case") {
  CHECK(failures_of(Spoiled().save(), device).empty());
  for (const double value : {1e-8, 1.0, std::nan("")}) {
    for (const std::string name : {"o", "dx", "x"}) {
      CAPTURE(name);
      const Spoiled spoiled;
      for (const auto& [tensor_name, x] : spoiled.tensors) {
        if (tensor_name == name) x.flatten()[x.numel() / 2].add_(value);
      }
      CHECK(!failures_of(spoiled.save(), device).empty());
    }
  }
}

TEST_CASE("golden: damaged and unknown cases fail") {
  const auto with = [](const std::string& key, const std::string& value) {
    Spoiled spoiled;
    value.empty() ? static_cast<void>(spoiled.metadata.erase(key))
                  : static_cast<void>(spoiled.metadata[key] = value);
    return failures_of(spoiled.save(), cpu);
  };
  expect_failure(with("op", ""), "the metadata has no \"op\"");
  expect_failure(with("op", "lrpe_twist"), "there is no operator \"lrpe_twist\"");
  expect_failure(with("args", ""), "the metadata has no \"args\"");
  expect_failure(with("args", R"({"offset": 0, "angle": 1})"), "argument angle is not known");
  expect_failure(with("args", R"({"act": "swish"})"), "no activation \"swish\"");
  expect_failure(with("args", "{offset"), "parse error");

  Spoiled more;
  more.tensors.emplace_back("mask", ones({2}));
  expect_failure(failures_of(more.save(), cpu), "tensor mask is not known");
  for (std::size_t i = 0; i < Spoiled().tensors.size(); ++i) {
    Spoiled fewer;
    fewer.tensors.erase(fewer.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    CHECK(!failures_of(fewer.save(), cpu).empty());
  }
  const Spoiled cut;
  const std::string path = cut.save();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 8);
  expect_failure(failures_of(path, cpu), "case.safetensors");
}

TEST_CASE("golden: a directory must be there and hold cases") {
  const TempDirectory empty_one;
  const std::string name = empty_one.path();
  expect_error([&] { golden_files(name + "/none"); }, "there is no directory", "none");
  expect_error([&] { golden_files(name); }, "holds no golden cases");
}
