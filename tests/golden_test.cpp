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
#include <set>
#include <sstream>

#include "golden_operators.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/safetensors.h"
#include "quipu/ops/compare.h"
#include "quipu/ops/lrpe.h"
#include "support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

/// What the results of a case are held to.
struct GoldenScale {
  Sizes sizes;
  double angle = 0;     // the largest one
  double upstream = 0;  // the largest entry of d_o
};

/// What each entry of result `i` may be off by.
Tensor bounds(const Tensor& wanted, DType dtype, const GoldenTask& task, const GoldenScale& scale,
              std::size_t i) {
  if (wanted.numel() == 0) return wanted;
  Tensor size = maximum(scale.sizes[i], abs(wanted.to(cpu)));
  size = where(eq(size - size, 0), size, 0);  // infinity bounds nothing
  const double angles = dtype == f64 ? 0.0 : scale.angle * epsilon_of(f32);
  const double sums = dtype == f64 ? 1e-10 : dtype == f32 ? 2e-5 : 0.0;
  const Tensor moved = max(size, -1, true) * (sums + angles);
  const double lost = 4 * smallest_subnormal(dtype) * (1 + scale.upstream);
  const Tensor beside = (moved + lost).expand(wanted.shape());
  if (!is_reduced(dtype)) return beside;
  return bounds_of_reduced(wanted.to(cpu), dtype, task.accuracy, size) + beside;
}

/// Output first, then the gradients of the inputs.
std::vector<Tensor> run(const GoldenVariant& variant, const std::vector<Tensor>& in,
                        std::size_t with_gradient, const Tensor& d_o) {
  std::vector<Tensor> inputs, leaves;
  for (const Tensor& x : in) {
    inputs.push_back(x.detach());
    if (leaves.size() < with_gradient) leaves.push_back(inputs.back().set_requires_grad());
  }
  Tape tape;
  const Tensor o = variant.f(inputs);
  std::vector<Tensor> results = tape.gradients(o, leaves, {d_o, false});
  results.insert(results.begin(), o.detach());
  return results;
}

/// One golden case on one device.
class GoldenCase {
 public:
  GoldenCase(const std::string& path, Device device)
      : file_(path), name_(std::filesystem::path(path).filename()), device_(device) {
    const std::string op = metadata("op");
    check(golden_operators().contains(op), "there is no operator \"", op, "\"");
    operator_ = &golden_operators().at(op);
    check_names();
  }

  /// What is wrong with it, a line each.
  std::vector<std::string> failures() {
    GoldenArgs args(metadata("args"));
    const GoldenTask task = operator_->task(args);
    args.check_all_used();
    const GoldenScale scale = scale_of(task);
    for (const GoldenVariant& variant : task.variants) {
      for (const DType dtype : {f64, f32, bf16, f16}) check_variant(task, variant, dtype, scale);
    }
    return failures_;
  }

 private:
  std::string metadata(const std::string& name) const {
    check(file_.metadata().contains(name), "the metadata has no \"", name, "\"");
    return file_.metadata().at(name);
  }
  /// The file may have no other tensors than those that are used.
  void check_names() const {
    std::set<std::string> known{"do", "o"};
    known.insert(operator_->constants.begin(), operator_->constants.end());
    for (const std::string& name : operator_->inputs) known.insert({name, "d" + name});
    for (const TensorEntry& entry : file_.entries()) {
      check(known.contains(entry.name), "tensor ", entry.name, " is not known");
    }
  }
  Tensor get(const std::string& name, DType dtype) const {
    const Tensor values = file_.get(name).to(device_);
    return is_floating(values.dtype()) ? values.to(dtype) : values;
  }
  std::vector<Tensor> inputs(DType dtype) const {
    std::vector<Tensor> result;
    for (const std::string& name : operator_->inputs) result.push_back(get(name, dtype));
    for (const std::string& name : operator_->constants) {
      if (file_.contains(name)) result.push_back(get(name, dtype));
    }
    return result;
  }
  GoldenScale scale_of(const GoldenTask& task) const {
    std::vector<Tensor> in = inputs(f64);
    for (Tensor& x : in) x = x.to(cpu);
    const Tensor d_o = get("do", f64).to(cpu);
    const auto largest = [](const Tensor& x) { return x.numel() > 0 ? max(abs(x)).item() : 0.0; };
    GoldenScale scale{task.sizes(in, d_o), 0, largest(d_o)};
    if (file_.contains("theta")) {
      // No position is beyond the number of tokens.
      std::int64_t tokens = 1;
      for (int i = 1; i < in[0].dim(); ++i) tokens = std::max(tokens, in[0].size(i));
      const std::int64_t most = tokens + std::abs(task.offset);
      scale.angle = largest(get("theta", f64)) * static_cast<double>(most);
    }
    return scale;
  }
  /// What the file says or, in reduced types, what f64 gives for the rounded inputs.
  std::vector<Tensor> wanted(const GoldenVariant& variant, DType dtype) const {
    if (is_reduced(dtype)) {
      std::vector<Tensor> rounded = inputs(dtype);
      for (Tensor& x : rounded) x = is_floating(x.dtype()) ? x.to(f64) : x;
      return run(variant, rounded, operator_->inputs.size(), get("do", dtype).to(f64));
    }
    std::vector<Tensor> result{get("o", f64)};
    for (const std::string& name : operator_->inputs) result.push_back(get("d" + name, f64));
    return result;
  }
  void check_variant(const GoldenTask& task, const GoldenVariant& variant, DType dtype,
                     const GoldenScale& scale) {
    const auto want = wanted(variant, dtype);
    const auto got = run(variant, inputs(dtype), operator_->inputs.size(), get("do", dtype));
    for (std::size_t i = 0; i < want.size(); ++i) {
      const std::string part = i == 0 ? "o" : "d" + operator_->inputs[i - 1];
      compare_part(variant.name + " " + name_of(dtype) + " " + part, got[i], want[i], dtype,
                   bounds(want[i], dtype, task, scale, i));
    }
  }
  void compare_part(const std::string& what, const Tensor& got, const Tensor& want, DType dtype,
                    const Tensor& allowed) {
    if (got.dtype() != dtype) failures_.push_back(name_ + what + " is " + name_of(got.dtype()));
    const Tensor rounded = want.to(dtype).to(f64);  // infinity where it overflows
    const auto beyond = first_beyond(got, where(eq(rounded - rounded, 0), want, rounded), allowed);
    if (beyond) failures_.push_back(name_ + what + " " + *beyond);
  }

  SafetensorsFile file_;
  std::string name_;
  Device device_;
  const GoldenOperator* operator_;
  std::vector<std::string> failures_;
};

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

/// As GoldenCase::failures; an exception is one, too.
std::vector<std::string> failures_of(const std::string& path, Device device) {
  try {
    return GoldenCase(path, device).failures();
  } catch (const std::exception& error) {
    return {path + ": " + error.what()};
  }
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

namespace {

/// A case of one's own: what f gives for inputs in f64.
struct OwnCase {
  std::string op, args;
  NamedTensors inputs, constants;
  std::function<Tensor(const std::vector<Tensor>&)> f;
  Tensor d_o;

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> in;
    for (const auto& [name, x] : inputs) in.push_back(x);
    for (const auto& [name, x] : constants) in.push_back(x);
    return in;
  }
  /// With the largest entry of a result off by a part of it.
  std::vector<std::string> failures(Device device, const std::string& spoiled = "",
                                    double part = 0) const {
    const auto results = run({"", f}, tensors(), inputs.size(), d_o);
    NamedTensors all = inputs;
    all.insert(all.end(), constants.begin(), constants.end());
    all.emplace_back("do", d_o);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::string name = i == 0 ? "o" : "d" + inputs[i - 1].first;
      const Tensor x = results[i].detach().clone();
      if (name == spoiled) {
        const Tensor entry = x.flatten()[static_cast<std::int64_t>(argmax(abs(x)).item())];
        entry.add_(part * entry.item());
      }
      all.emplace_back(name, x);
    }
    const TempDirectory directory;
    save_safetensors(directory.file("own.safetensors"), all, {{"op", op}, {"args", args}});
    return failures_of(directory.file("own.safetensors"), device);
  }
};

std::vector<OwnCase> edge_cases() {
  Generator generator(11);
  const auto normals = [&](const Shape& shape, double scale = 1) {
    return randn(shape, f64, cpu, generator) * scale;
  };
  std::vector<OwnCase> cases;
  // Rows of zeros, tiny and large ones; gradients that cancel.
  const auto rows = [&](std::int64_t n, std::int64_t d) {
    const Tensor x = normals({1, n, 1, d});
    x.slice(1, 0, 1).fill_(0);
    x.slice(1, 1, 2).mul_(1e-15);
    x.slice(1, 2, 3).mul_(20);
    x.slice(1, 3, 4).mul_(1e-6);
    return x;
  };
  const std::pair<const char*, Act> acts[] = {{"relu", Act::relu},
                                              {"sigmoid", Act::sigmoid},
                                              {"silu", Act::silu},
                                              {"softmax", Act::softmax}};
  for (const auto& [name, kind] : acts) {
    const std::optional<int> dim = kind == Act::softmax ? std::optional<int>(-1) : std::nullopt;
    const std::string args =
        std::string("{\"act\": \"") + name + (dim ? "\", \"dim\": -1}" : "\"}");
    for (const double up : {1.0, 1e-6}) {
      const Tensor same = ones({1, 6, 1, 8}, f64) * up;  // softmax passes nothing of it
      for (const Tensor& d_o : {normals({1, 6, 1, 8}, up), same}) {
        cases.push_back(
            {"act",
             args,
             {{"x", rows(6, 8)}},
             {},
             [kind = kind, dim](const auto& in) { return act_composed(in[0], kind, dim); },
             d_o});
      }
    }
    for (const double offset : {0.0, 3000.0}) {
      const std::string with_offset =
          args.substr(0, args.size() - 1) + ", \"offset\": " + std::to_string(int(offset)) + "}";
      const LrpeOptions options{kind, dim, static_cast<std::int64_t>(offset)};
      cases.push_back(
          {"lrpe_rotate",
           with_offset,
           {{"x", rows(6, 8)}},
           {{"theta", normals({1, 4})}},
           [options](const auto& in) { return lrpe_rotate_composed(in[0], in[1], options); },
           normals({1, 6, 1, 8})});
    }
  }
  for (const double scale : {1.0, 1e-4, 0.0}) {
    const auto input = [&] { return normals({1, 2, 5, 4}); };
    const Tensor g = normals({1, 2, 5, 4}, scale);
    g.slice(2, 1, 2).mul_(1e-15);
    cases.push_back({"flao",
                     "{}",
                     {{"q", input()}, {"k", input()}, {"v", input()}, {"g", g}},
                     {},
                     [](const auto& in) { return flao_composed(in[0], in[1], in[2], in[3]); },
                     normals({1, 2, 5, 4})});
    cases.push_back({"tpa_decode",
                     "{}",
                     {{"aq", normals({2, 1, 3, 2})},
                      {"ak", normals({2, 7, 3})},
                      {"av", normals({2, 7, 3}, scale)},
                      {"bq", normals({2, 1, 2, 4})},
                      {"bk", normals({2, 7, 4})},
                      {"bv", normals({2, 7, 5})}},
                     {},
                     [](const auto& in) {
                       return tpa_decode_composed(in[0], in[1], in[2], in[3], in[4], in[5]);
                     },
                     normals({2, 1, 3, 5})});
  }
  return cases;
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "golden: zeros, underflow and what cancels have bounds") {
  for (const OwnCase& c : edge_cases()) {
    CAPTURE(c.op);
    CAPTURE(c.args);
    for (const std::string& failure : c.failures(device)) FAIL_CHECK(failure);
  }
}

TEST_CASE("golden: an entry that is a little off fails, whatever its neighbours are") {
  for (const OwnCase& c : edge_cases()) {
    CAPTURE(c.op);
    CAPTURE(c.args);
    if (max(abs(c.f(c.tensors()))).item() == 0) continue;  // nothing to be a part of
    CHECK(!c.failures(cpu, "o", 1e-7).empty());
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
