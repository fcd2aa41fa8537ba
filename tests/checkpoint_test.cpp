// Checkpoints: what is saved comes back, and nothing that goes wrong costs the one before.
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "quipu/autograd/tape.h"
#include "quipu/core/atomic_file.h"
#include "quipu/core/memory.h"
#include "quipu/nn/checkpoint.h"
#include "quipu/nn/named_state.h"
#include "safetensors_files.h"
#include "small_disk.h"
#include "support.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

namespace fs = std::filesystem;

namespace {

bool same(const NamedTensors& a, const NamedTensors& b) {
  bool equal = a.size() == b.size();
  for (const auto& [name, tensor] : a) {
    const Tensor* const other = find_tensor(b, name);
    equal = equal && other && same_bits(tensor.detach().to(cpu), other->detach().to(cpu));
  }
  return equal;
}

Checkpoint example(std::int64_t step, Device device = {}) {
  const auto values = [&](const Shape& shape, DType dtype) {
    return randn(shape, f32, device).to(dtype);
  };
  return {.step = step,
          .model = {{"layers.0.weight", values({3, 4}, f32)},
                    {"layers.0.bias", values({3}, bf16)},
                    {"head", values({4, 3}, f64).t()}},
          .parts = {{"optimizer", {{"layers.0.weight.momentum", values({3, 4}, f32)}}},
                    {"data", {{"epoch", to_state(3)}, {"batch", to_state(17)}}},
                    {"schedule", {}}},
          .texts = {{"config", "{\"layers\": 1}"}}};
}

void check_same(const Checkpoint& a, const Checkpoint& b) {
  CHECK(a.step == b.step);
  CHECK(same(a.model, b.model));
  CHECK(a.parts.size() == b.parts.size());
  for (const auto& [name, tensors] : a.parts) CHECK(same(tensors, b.part(name)));
  CHECK(a.texts == b.texts);
  CHECK(a.random == b.random);
}

/// A folder that keeps what it says instead of printing it.
struct Quiet {
  explicit Quiet(const std::string& path, int keep = 3)
      : folder(path,
               {.keep = keep, .say = [this](const std::string& text) { said.push_back(text); }}) {}
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  bool said_that(std::string_view part) const {
    return std::ranges::any_of(
        said, [&](const std::string& text) { return text.find(part) != text.npos; });
  }
  std::vector<std::string> said;
  CheckpointFolder folder;
};

using Steps = std::vector<std::int64_t>;

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE_FIXTURE(EachDevice, "checkpoint: everything comes back, from any device") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  manual_seed(5);
  const Checkpoint saved = example(120, device);
  save_checkpoint(path, saved);
  check_same(saved, load_checkpoint(path));
  CHECK(load_checkpoint(path).part("schedule").empty());
  expect_error([&] { load_checkpoint(path).part("ema"); },
               "the checkpoint of step 120 has no part 'ema'; it has 'data', 'optimizer'");
}

TEST_CASE("checkpoint: any reader of safetensors finds plain names") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  const Checkpoint saved = example(7);
  save_checkpoint(path, saved);
  const SafetensorsFile file(path);
  CHECK(same_bits(file.get("layers.0.weight"), saved.model[0].second));
  CHECK(file.contains("optimizer.layers.0.weight.momentum"));
  CHECK(file.get("data.batch").item_int() == 17);
  CHECK(file.get("step").item_int() == 7);
  CHECK(file.get("random.default").shape() == Shape{2});
  CHECK(file.metadata().at("quipu.checkpoint") == "1");
  CHECK(file.metadata().at("config") == "{\"layers\": 1}");

  save_safetensors(path, saved.model, {{"by", "another program"}});
  const Checkpoint foreign = load_checkpoint(path);
  CHECK(foreign.step == 0);
  CHECK(same(foreign.model, saved.model));
  CHECK(foreign.texts.at("by") == "another program");
}

TEST_CASE("checkpoint: random numbers go on where they were") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  manual_seed(0xfedcba9876543210);
  randn({5});
  save_checkpoint(path, {});
  const Tensor next = randn({100});
  manual_seed(1);
  load_checkpoint(path).restore_random();
  CHECK(same_bits(randn({100}), next));
}

TEST_CASE_FIXTURE(EachDevice, "checkpoint: saving leaves ledger, tape and generator alone") {
  const TempDirectory directory;
  CheckpointFolder folder(directory.path().string());
  const Checkpoint checkpoint = example(1, device);
  const Tensor x = checkpoint.model[0].second.set_requires_grad();
  const Tape tape;
  const auto before = memory_stats(device), host_before = memory_stats();
  const PhiloxState random = default_generator().state();
  folder.save(checkpoint);
  save_checkpoint(directory.file("c"), checkpoint);
  CHECK(memory_stats(device).current == before.current);
  CHECK(memory_stats(device).by_category == before.by_category);
  CHECK(memory_stats().by_category == host_before.by_category);
  CHECK(memory_stats().live_blocks == host_before.live_blocks);
  CHECK(tape.size() == 0);
  CHECK(default_generator().state() == random);
}

TEST_CASE("checkpoint: what cannot be one says why") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  const auto refused = [&](const Checkpoint& checkpoint, const Expected& part) {
    expect_error([&] { save_checkpoint(path, checkpoint); }, part, "save_checkpoint: ");
    CheckpointFolder folder(directory.file("folder"));
    expect_error([&] { folder.try_save(checkpoint); }, part);  // a mistake, not a full disk
  };
  const Tensor x = zeros({2});
  refused({.step = -1}, "step is -1");
  refused({.model = {{"step", x}}}, "cannot have the name 'step'");
  refused({.model = {{"random.x", x}}}, "cannot have the name 'random.x'");
  refused({.model = {{"optimizer.w", x}}, .parts = {{"optimizer", {}}}}, "'optimizer.w'");
  refused({.model = {{"w", x}, {"w", x}}}, "tensor 'w' is given twice");
  refused({.model = {{"w", Tensor()}}}, "tensor 'w' is undefined");
  refused({.model = {{"w", empty({2}, f32, "meta:cpu")}}}, "'w' is on meta:cpu and has no values");
  refused({.parts = {{"a.b", {}}}}, "a part cannot have the name 'a.b'");
  refused({.parts = {{"", {}}}}, "a part cannot have the name ''");
  refused({.parts = {{"random", {}}}}, "a part cannot have the name 'random'");
  refused({.texts = {{"quipu.x", ""}}}, "a text cannot have the name 'quipu.x'");
  CHECK(fs::is_empty(directory.path()));
  save_checkpoint(path, {.model = {{"optimizer", x}, {"data.x", x}}, .parts = {{"optimizer", {}}}});
  CHECK(load_checkpoint(path).model.size() == 2);
}

TEST_CASE("checkpoint: damage of any byte is found") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  save_checkpoint(path, example(5));
  const std::string bytes = read_bytes(path);
  std::size_t unnoticed = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    write_bytes(path, damaged);
    if (!thrown_message<Error>([&] { load_checkpoint(path); })) ++unnoticed;
  }
  CHECK(unnoticed == 0);
  const std::size_t data_begin = bytes.size() - 200;
  for (std::size_t i = data_begin; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    write_bytes(path, damaged);
    expect_error([&] { load_checkpoint(path); }, "the file is damaged", path);
  }
  for (std::size_t length = 0; length < bytes.size(); length += 13) {
    write_bytes(path, bytes.substr(0, length));
    CHECK(thrown_message<Error>([&] { load_checkpoint(path); }));
  }
}

TEST_CASE("checkpoint: a newer format is refused") {
  const TempDirectory directory;
  const std::string path = directory.file("c.safetensors");
  save_safetensors(path, {}, {{"quipu.checkpoint", "2"}});
  expect_error([&] { load_checkpoint(path); }, "has format '2', but this program reads format 1");
}

TEST_CASE("checkpoint: a folder keeps the last ones") {
  const TempDirectory directory;
  Quiet quiet(directory.file("runs/first"), 2);
  CheckpointFolder& folder = quiet.folder;
  CHECK(!folder.newest());
  CHECK(folder.steps().empty());
  for (const std::int64_t step : {1, 20, 300, 4000, 12345678}) folder.save(example(step));
  CHECK(folder.steps() == Steps{4000, 12345678});
  CHECK(fs::exists(directory.file("runs/first/step-004000.safetensors")));
  CHECK(folder.newest()->step == 12345678);
  folder.save(example(4000));  // the run went back: what lies ahead stays
  CHECK(folder.steps() == Steps{4000, 12345678});
  folder.save(example(5000));
  CHECK(folder.steps() == Steps{4000, 5000, 12345678});
  CHECK(quiet.said.empty());
  expect_error([] { CheckpointFolder zero("x", {.keep = 0}); }, "keep is 0");
  expect_error([] { CheckpointFolder nowhere(""); }, "has no name");
}

TEST_CASE("checkpoint: the newest valid one, and why not the others") {
  const TempDirectory directory;
  const std::string path = directory.path().string();
  Quiet quiet(path, 10);
  CheckpointFolder& folder = quiet.folder;
  for (const std::int64_t step : {10, 20, 30, 40, 50}) folder.save(example(step));
  write_bytes(folder.path_of(50), read_bytes(folder.path_of(40)).substr(0, 700));
  write_bytes(folder.path_of(40), "");
  fs::copy_file(folder.path_of(10), folder.path_of(60));
  std::string flipped = read_bytes(folder.path_of(30));
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_bytes(folder.path_of(30), flipped);
  const std::string leftover = folder.path_of(70) + ".4711-0.tmp";
  write_bytes(leftover, "half");
  for (const char* other :
       {"step-.safetensors", "step-x.safetensors", "step-99.safetensors", "step--00099.safetensors",
        "notes.txt", "step-000100.safetensors.bak"}) {
    write_bytes(directory.file(other), "not one of them");
  }
  CHECK(folder.steps() == Steps{10, 20, 30, 40, 50, 60});
  const std::optional<Checkpoint> newest = folder.newest();
  REQUIRE(newest);
  CHECK(newest->step == 20);
  CHECK(quiet.said.size() == 5);
  CHECK(quiet.said_that("step-000070.safetensors.4711-0.tmp, which a run left behind"));
  CHECK(quiet.said_that("step-000060.safetensors: the file is of step 10"));
  CHECK(quiet.said_that("step-000050.safetensors: "));
  CHECK(quiet.said_that("step-000040.safetensors: the file has 0 bytes"));
  CHECK(quiet.said_that("step-000030.safetensors: the file is damaged"));
  CHECK(fs::exists(leftover));  // reading removes nothing
  folder.save(example(21));
  CHECK(!fs::exists(leftover));
  CHECK(fs::exists(directory.file("notes.txt")));
  CHECK(fs::exists(directory.file("step-000100.safetensors.bak")));
}

TEST_CASE("checkpoint: a full disk costs the new one only") {
  const TempDirectory directory;
  Quiet quiet(directory.path().string());
  CheckpointFolder& folder = quiet.folder;
  folder.save(example(1));
  const std::string bytes = read_bytes(folder.path_of(1));
  const std::size_t held = memory_stats().current;
  const auto try_on_small_disk = [&](const Checkpoint& checkpoint, std::size_t room) {
    const SmallDisk disk(room);
    return folder.try_save(checkpoint);
  };
  {
    const Checkpoint next = example(2), again = example(1);
    for (const std::size_t room :
         {std::size_t{0}, std::size_t{5}, std::size_t{100}, bytes.size() - 1}) {
      CHECK(!try_on_small_disk(next, room));
      CHECK(!try_on_small_disk(again, room));  // the same name
      CHECK(read_bytes(folder.path_of(1)) == bytes);
      CHECK(files_in(directory.path()) == 1);
    }
    CHECK(quiet.said.size() == 1);
    CHECK(quiet.said_that("no checkpoint of step 2: "));
    CHECK(quiet.said_that("File too large; the run goes on"));
    CHECK(quiet.said_that("newest one stays " + folder.path_of(1)));
    expect_error(
        [&] {
          const SmallDisk disk(100);
          folder.save(next);
        },
        "File too large", folder.path_of(2));
    CHECK(folder.try_save(next));  // there is room again
    CHECK(folder.newest()->step == 2);
    CHECK(!try_on_small_disk(again, 10));  // and again there is none: said again
    CHECK(quiet.said.size() == 2);
  }
  CHECK(memory_stats().current == held);
}

TEST_CASE(
    "checkpoint: where the disk is full, old ones make room, but never the newest valid one") {
  const TempDirectory directory;
  const std::string path = directory.path().string();
  Quiet quiet(path, 3);
  CheckpointFolder& folder = quiet.folder;
  for (const std::int64_t step : {10, 20, 30}) folder.save(example(step));
  const std::size_t each = read_bytes(folder.path_of(30)).size();
  const Checkpoint next = example(40);
  {
    const FullDisk disk(path, 3 * each);  // one must go, which would not be kept anyway
    CHECK(folder.try_save(next));
    CHECK(folder.steps() == Steps{20, 30, 40});
  }
  {
    const FullDisk disk(path, 2 * each);  // two have no place beside the newest
    folder.save(example(50));
    CHECK(folder.steps() == Steps{40, 50});
    CHECK(quiet.said_that("removed " + folder.path_of(30)));
  }
  {
    const FullDisk disk(path, 2 * each - 1);
    CHECK(!folder.try_save(example(60)));
    CHECK(folder.steps() == Steps{50});
    CHECK(folder.problem().find("No space left on device") != std::string::npos);
    expect_error<DiskFull>([&] { folder.save(example(60)); }, "cannot write", folder.path_of(60));
    CHECK(files_in(directory.path()) == 1);
  }
  // The newest file is not valid: the one before it stays.
  folder.save(example(60));
  write_bytes(folder.path_of(60), read_bytes(folder.path_of(60)).substr(0, each - 1));
  write_bytes(folder.path_of(61) + ".4711-0.tmp", std::string(each, 'x'));
  {
    const FullDisk disk(path, 2 * each);
    CHECK(folder.try_save(example(70)));
    CHECK(folder.steps() == Steps{50, 70});
  }
  CHECK(folder.problem().empty());
}

TEST_CASE("checkpoint: a reason that room does not help against costs no older one") {
  const TempDirectory directory;
  Quiet quiet(directory.path().string(), 2);
  for (const std::int64_t step : {10, 20}) quiet.folder.save(example(step));
  const SmallDisk disk(100);  // EFBIG
  CHECK(!quiet.folder.try_save(example(30)));
  CHECK(quiet.folder.steps() == Steps{10, 20});
}

TEST_CASE("checkpoint: a model that is not finite is neither saved nor the newest") {
  const double nan = std::nan("");
  const TempDirectory directory;
  Quiet quiet(directory.path().string());
  CheckpointFolder& folder = quiet.folder;
  folder.save(example(10));
  for (const double bad : {nan, std::numeric_limits<double>::infinity()}) {
    Checkpoint broken = example(20);
    broken.model[1].second.select(0, 2).fill_(bad);
    CHECK(!folder.try_save(broken));
    CHECK(folder.problem().find("element 2 of 'layers.0.bias' (3,) is NaN or infinite") !=
          std::string::npos);
    expect_error([&] { folder.save(broken); }, "CheckpointFolder: the model of step 20", "finite");
    save_checkpoint(folder.path_of(20), broken);  // by another program
    CHECK(folder.newest()->step == 10);
    CHECK(quiet.said_that("step-000020.safetensors: element 2 of 'layers.0.bias'"));
    CheckpointFolder any(directory.path().string(), {.finite = false});
    CHECK(any.newest()->step == 20);
    any.save(broken);
    fs::remove(folder.path_of(20));
  }
  Checkpoint part = example(30);
  part.parts["best"] = {{"loss", scalar_tensor(std::numeric_limits<double>::infinity())}};
  CHECK(folder.try_save(part));
  CHECK(folder.problem().empty());
}

TEST_CASE("checkpoint: whether a folder can be written is known before") {
  const TempDirectory directory;
  write_bytes(directory.file("file"), "");
  expect_error([&] { CheckpointFolder(directory.file("file/runs")).check_writable(); },
               "CheckpointFolder: cannot make the folder");
  const CheckpointFolder folder(directory.file("runs/first"));
  folder.check_writable();
  CHECK(files_in(directory.path() / "runs/first") == 0);
}

TEST_CASE("checkpoint: a folder that cannot be made or written") {
  const TempDirectory directory;
  write_bytes(directory.file("file"), "");
  Quiet quiet(directory.file("file/runs"));
  CHECK(!quiet.folder.try_save(example(1)));
  CHECK(quiet.said_that("cannot make the folder"));
  CHECK(quiet.said_that("but there is no older one"));
  expect_error([&] { quiet.folder.save(example(1)); }, "CheckpointFolder: cannot make the folder");
  CHECK(!quiet.folder.newest());
}

TEST_CASE_FIXTURE(EachDevice, "checkpoint: loading copies values where they belong") {
  const NamedTensors target{{"a", zeros({2, 3}, f32, device)}, {"b", zeros({2}, i64, device)}};
  const NamedTensors source{{"b", from({std::int64_t{4}, std::int64_t{5}})}, {"a", ones({2, 3})}};
  target[0].second.set_requires_grad();
  const Tensor before = target[0].second;
  const Tape tape;
  CHECK(load_into(target, source).complete());
  CHECK(same(target, source));
  CHECK(target[0].second.same_as(before));
  CHECK(tape.size() == 0);
}

TEST_CASE("checkpoint: all that differs is in one error, and nothing is changed") {
  const NamedTensors target{{"same", zeros({2})},
                            {"shape", zeros({2, 3})},
                            {"type", zeros({4})},
                            {"only.here", zeros({1}, bf16)}};
  const NamedTensors source{{"same", ones({2})},
                            {"shape", ones({3, 2})},
                            {"type", ones({4}, f64)},
                            {"only.there", ones({5}, u8)}};
  expect_error([&] { load_into(target, source); }, "load: the tensors do not fit in 4 places:",
               "\n  'shape' is f32 (3, 2), but f32 (2, 3) is wanted",
               "\n  'type' is f64 (4,), but f32 (4,) is wanted",
               "\n  'only.here' is missing; bf16 (1,) is wanted",
               "\n  'only.there' is u8 (5,), but nothing of that name is wanted");
  CHECK(target[0].second.to_vector() == std::vector<double>{0, 0});
  expect_error([&] { load_into(target, source, Loading::partial); }, "in 2 places:", "'shape'",
               "'type'");
  CHECK(target[0].second.to_vector() == std::vector<double>{0, 0});

  NamedTensors many;
  for (int i = 0; i < 50; ++i) many.emplace_back("w" + std::to_string(i), zeros({1}));
  const auto message = thrown_message<Error>([&] { load_into(many, {}); });
  check_message(message, "in 50 places:", {"... and 30 more"});
  CHECK(std::ranges::count(*message, '\n') == 21);
  expect_error([] { load_into({{"a", zeros({1})}, {"a", zeros({1})}}, {}); }, "'a' of the target");
  expect_error([] { load_into({}, {{"a", Tensor()}}); }, "'a' of the source is undefined");
}

TEST_CASE("checkpoint: a part of a model") {
  const NamedTensors target{{"body", zeros({2})}, {"new_head", zeros({3})}};
  const LoadReport report =
      load_into(target, {{"old_head", ones({4})}, {"body", ones({2})}}, Loading::partial);
  CHECK(report.missing == std::vector<std::string>{"new_head"});
  CHECK(report.left_over == std::vector<std::string>{"old_head"});
  CHECK(!report.complete());
  CHECK(report.text() == "1 missing:\n  new_head\n1 left over:\n  old_head");
  CHECK(LoadReport().text() == "everything was loaded");
  CHECK(target[0].second.to_vector() == std::vector<double>{1, 1});
}

TEST_CASE("checkpoint: names behind a prefix") {
  const NamedTensors state{{"a", zeros({1})}, {"b.c", ones({1})}};
  const NamedTensors prefixed = add_prefix("x.", state);
  CHECK(prefixed[1].first == "x.b.c");
  CHECK(same(take_prefix("x.", prefixed), state));
  CHECK(take_prefix("b.", state).size() == 1);
  CHECK(take_prefix("y.", prefixed).empty());
}
