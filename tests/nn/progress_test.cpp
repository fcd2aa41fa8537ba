// The progress line, plain lines and the log.
#include <quipu/quipu.h>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "quipu/nn/train/progress_line.h"
#include "support/child.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::detail;
using namespace quipu::nn;
using namespace quipu::nn::detail;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Device meta_cpu(DeviceKind::cpu, 0, true);

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<nlohmann::json> entries_of(const std::string& path) {
  std::vector<nlohmann::json> entries;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) entries.push_back(nlohmann::json::parse(line));
  return entries;
}

/// A file to write to, closed with it.
struct OutFile {
  explicit OutFile(const std::string& path) : file(std::fopen(path.c_str(), "w")) {}
  ~OutFile() { std::fclose(file); }
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;
  std::FILE* file;
};

/// A terminal with nobody before it: what is written to `file` can be read back.
struct Terminal {
  explicit Terminal(int columns) : keyboard(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    REQUIRE(keyboard >= 0);
    REQUIRE(grantpt(keyboard) == 0);
    REQUIRE(unlockpt(keyboard) == 0);
    const int screen = open(ptsname(keyboard), O_RDWR | O_NOCTTY);
    REQUIRE(screen >= 0);
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    size.ws_row = 24;
    REQUIRE(ioctl(screen, TIOCSWINSZ, &size) == 0);
    file = fdopen(screen, "w");
  }
  ~Terminal() {
    std::fclose(file);
    close(keyboard);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  std::string text() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = read(keyboard, buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(n));
    }
    return all;
  }
  int keyboard;
  std::FILE* file;
};

ProgressFigures example() {
  return {.step = 120,
          .steps = 2000,
          .loss = 2.31449,
          .rate = 18234,
          .unit = "tokens",
          .memory = 12 << 20,
          .peak = 40 << 20,
          .seconds_left = 83};
}

}  // namespace

TEST_CASE("progress line: everything, where there is room") {
  CHECK(
      progress_line(example(), 200) ==
      "step 120/2000 · loss 2.3145 · 18.2k tokens/s · memory 12.0 MiB · peak 40.0 MiB · 1:23 left");
  CHECK(progress_line(example(), 200, false).find(" | loss") != std::string::npos);
  ProgressFigures f = example();
  f.steps = 0;
  f.seconds_left.reset();
  f.loss.reset();
  f.rate = 0;
  f.extra = "accuracy 0.97";
  CHECK(progress_line(f, 200) == "step 120 · accuracy 0.97 · memory 12.0 MiB · peak 40.0 MiB");
}

TEST_CASE("progress line: fits every width, the step to the last") {
  for (int width = 0; width < 100; ++width) {
    const std::string line = progress_line(example(), width);
    CAPTURE(width);
    CHECK(columns_of(line) <= width);
    if (width >= 13) CHECK(line.starts_with("step 120/2000"));
    if (width >= 28) CHECK(line.find("loss 2.3145") != std::string::npos);
  }
}

TEST_CASE("progress line: numbers and times as people write them") {
  CHECK(short_number(0) == "0");
  CHECK(short_number(7) == "7");
  CHECK(short_number(0.25) == "0.25");
  CHECK(short_number(999) == "999");
  CHECK(short_number(999.9) == "1.00k");
  CHECK(short_number(18234) == "18.2k");
  CHECK(short_number(2.5e6) == "2.50M");
  CHECK(short_number(-1500) == "-1.50k");
  CHECK(short_time(0.84) == "0.8 s");
  CHECK(short_time(9.97) == "10 s");
  CHECK(short_time(59.4) == "59 s");
  CHECK(short_time(59.6) == "1:00");
  CHECK(short_time(83) == "1:23");
  CHECK(short_time(7510) == "2:05:10");
  CHECK(short_time(infinity) == "?");
  CHECK(short_time(std::nan("")) == "?");
  CHECK(columns_of("a · b") == 5);
}

TEST_CASE("progress: plain lines when it is piped, the first and the last step among them") {
  const TempDirectory directory;
  const std::string path = directory.file("out");
  double seconds = 0;
  {
    const OutFile out(path);
    Progress progress({.steps = 500, .out = out.file});
    for (int i = 0; i < 500; ++i) {
      progress.step(scalar_tensor(0.5), {.count = 32});
      if (i == 99) progress.note("checkpoint saved");
    }
    progress.finish();
    progress.finish();
    seconds = progress.figures().seconds;
  }
  const std::string text = text_of(path);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
  CHECK(text.starts_with("step 1/500"));
  CHECK(count_of(text, "step 500/500") == 1);
  CHECK(text.find("checkpoint saved\n") != std::string::npos);
  CHECK(text.find("took") != std::string::npos);
  CHECK(static_cast<double>(count_of(text, "\n")) <= 4 + seconds);
  CHECK(text.back() == '\n');
}

TEST_CASE("progress: one live line on a terminal, drawn at most ten times a second") {
  const Terminal terminal(40);
  setenv("LANG", "C.UTF-8", 0);
  double seconds = 0;
  {
    Progress progress({.steps = 60, .unit = "tokens", .out = terminal.file});
    for (int i = 0; i < 60; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      progress.step(scalar_tensor(0.5), {.count = 32});
      if (i == 20) progress.note("a note");
    }
    seconds = progress.figures().seconds;
  }
  const std::string text = terminal.text();
  CHECK(count_of(text, "\r") >= 3);
  CHECK(static_cast<double>(count_of(text, "step ")) <= 5 + 10 * seconds);
  CHECK(count_of(text, "\n") == 2);
  CHECK(text.find("a note\r\n\rstep") != std::string::npos);
  CHECK(text.find("step 60/60") != std::string::npos);
  CHECK(text.ends_with("\x1b[K\r\n"));
  for (std::size_t at = text.find("\rstep"); at != std::string::npos;
       at = text.find("\rstep", at + 1)) {
    CHECK(columns_of(text.substr(at + 1, text.find('\x1b', at) - at - 1)) < 40);
  }
}

TEST_CASE("progress: the log has one object a step, and goes on after a resume") {
  const TempDirectory directory;
  const std::string path = directory.file("run.jsonl");
  {
    Progress progress({.unit = "tokens", .log = path, .out = nullptr});
    for (int i = 0; i < 5; ++i) {
      progress.step(scalar_tensor(i == 3 ? infinity : 0.5 * i),
                    {.count = 10, .lr = 0.1, .extra = {{"accuracy", 0.75}}});
    }
  }
  auto entries = entries_of(path);
  REQUIRE(entries.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(entries[i]["step"] == i + 1);
  CHECK(entries[2]["loss"] == 1.0);
  CHECK(entries[3]["loss"].is_null());
  for (const char* key :
       {"lr", "accuracy", "tokens_per_second", "memory_bytes", "peak_bytes", "seconds"}) {
    CAPTURE(std::string(key));
    CHECK(entries[4][key].is_number());
  }
  // Killed in the middle of a line; the checkpoint was of step 3.
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"lo";
  {
    Progress progress({.first_step = 3, .log = path, .out = nullptr});
    CHECK(progress.done() == 3);
    progress.step(scalar_tensor(9.0));
  }
  entries = entries_of(path);
  REQUIRE(entries.size() == 4);
  CHECK(entries[2]["step"] == 3);
  CHECK(entries[3]["step"] == 4);
  CHECK(entries[3]["loss"] == 9.0);
  { const Progress another({.log = path, .out = nullptr}); }
  CHECK(text_of(path).empty());
}

TEST_CASE("progress: a log that cannot be written") {
  const TempDirectory directory;
  expect_error([&] { Progress({.log = directory.file("none/x"), .out = nullptr}); },
               "cannot write the log", "none/x");
  if (access("/dev/full", W_OK) != 0) return;
  const std::string path = directory.file("out");
  {
    const OutFile out(path);
    Progress progress({.log = "/dev/full", .out = out.file});
    for (int i = 0; i < 3; ++i) progress.step(scalar_tensor(1.0));
    CHECK(progress.done() == 3);
  }
  CHECK(count_of(text_of(path), "cannot write to the log /dev/full any more") == 1);
}

TEST_CASE("progress: figures of the run") {
  Progress progress({.first_step = 100, .unit = "images", .out = nullptr});
  CHECK(progress.figures().steps == 100);
  for (int i = 0; i < 20000; ++i) progress.step(Tensor(), {.count = 2});
  progress.step(scalar_tensor(3.0), {.count = 2, .lr = 0.5});
  const RunFigures run = progress.figures();
  CHECK(run.steps == 20101);
  CHECK(run.own_steps == 20001);
  CHECK(run.unit == "images");
  CHECK(run.seconds > 0);
  CHECK(run.median_seconds > 0);
  CHECK(run.mean_rate == doctest::Approx(2 * 20001 / run.seconds));
  CHECK(run.history.size() > 4000);
  CHECK(run.history.size() < 9000);
  for (std::size_t i = 1; i < run.history.size(); ++i) {
    CHECK(run.history[i].step - run.history[i - 1].step <= 4);
  }
}

TEST_CASE("progress: losses on meta are not read") {
  Progress progress({.device = meta_cpu, .out = nullptr});
  progress.step(zeros({}, f32, meta_cpu), {.count = 1});
  CHECK_FALSE(progress.figures().history.at(0).loss.has_value());
}

TEST_CASE("progress: a metric keeps its name for itself") {
  const TempDirectory directory;
  const std::string path = directory.file("run.jsonl");
  Progress progress({.unit = "tokens", .log = path, .out = nullptr});
  for (const char* taken :
       {"loss", "step", "lr", "seconds", "memory_bytes", "peak_bytes", "tokens_per_second"}) {
    expect_error(
        [&] {
          progress.step(scalar_tensor(1.0), {.extra = {{taken, 0.5}}});
        },
        "Progress: a metric cannot be called", taken);
  }
  expect_error([&] { progress.step(scalar_tensor(1.0), {.extra = {{"a", 1}, {"a", 2}}}); }, "'a'");
  CHECK(progress.done() == 0);
  progress.step(scalar_tensor(1.0), {.extra = {{"test loss", 0.5}}});
  const auto entries = entries_of(path);
  REQUIRE(entries.size() == 1);
  CHECK(entries[0]["loss"] == 1.0);
  CHECK(entries[0]["test loss"] == 0.5);
}

TEST_CASE("progress: names that are not UTF-8 do not end the run") {
  const TempDirectory directory;
  const std::string path = directory.file("run.jsonl");
  for (const char* text : {"\xff\xfe", "caf\xe9", "\xf0\x9f", "\xed\xa0\x80"}) {
    Progress progress({.unit = text, .log = path, .out = nullptr});
    for (int i = 0; i < 3; ++i) {
      progress.step(scalar_tensor(1.0), {.count = 1, .extra = {{text, 2.0}}});
    }
    CHECK(entries_of(path).size() == 3);
    CHECK(RunPage({.title = text}, progress.figures()).html().size() > 0);
  }
}
