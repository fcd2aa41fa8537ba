// Folders of checkpoints: nothing that goes wrong costs the one before.
#include <cmath>
#include <limits>

#include "checkpoints.h"
#include "quipu/core/io/atomic_file.h"
#include "quipu/core/memory/memory.h"
#include "support/safetensors_files.h"
#include "support/small_disk.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;
using namespace quipu::testing;

namespace fs = std::filesystem;

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
