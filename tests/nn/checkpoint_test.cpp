// Checkpoints: what is saved comes back, and what is damaged does not.
#include <algorithm>

#include "checkpoints.h"
#include "quipu/autograd/tape.h"
#include "quipu/core/memory/memory.h"
#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;
using namespace quipu::nn::detail;
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

void check_same(const Checkpoint& a, const Checkpoint& b) {
  CHECK(a.step == b.step);
  CHECK(same(a.model, b.model));
  CHECK(a.parts.size() == b.parts.size());
  for (const auto& [name, tensors] : a.parts) CHECK(same(tensors, b.part(name)));
  CHECK(a.texts == b.texts);
  CHECK(a.random == b.random);
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
