// Files for TensorBoard, read back field by field.
#include "quipu/nn/train/event_file.h"

#include <quipu/quipu.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>

#include "support/safetensors_files.h"
#include "support/small_disk.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::testing;

namespace {

/// A message of protocol buffers: the values of each field, numbers as their bits.
using Message = std::multimap<unsigned, std::string>;

std::uint64_t varint(const std::string& bytes, std::size_t& at) {
  std::uint64_t n = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.at(at++));
    n |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return n;
  }
}

Message parse(const std::string& bytes) {
  Message fields;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t key = varint(bytes, at);
    const unsigned kind = key & 7;
    if (kind == 0) {
      fields.emplace(key >> 3, std::to_string(varint(bytes, at)));
      continue;
    }
    const std::size_t size = kind == 1 ? 8 : kind == 5 ? 4 : varint(bytes, at);
    REQUIRE(at + size <= bytes.size());
    fields.emplace(key >> 3, bytes.substr(at, size));
    at += size;
  }
  return fields;
}

template <class T>
std::vector<T> numbers(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

const std::string& only(const Message& m, unsigned field) {
  REQUIRE(m.count(field) == 1);
  return m.find(field)->second;
}

std::vector<Message> events(const std::string& path) {
  const std::string bytes = read_bytes(path);
  std::vector<Message> found;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto size = numbers<std::uint64_t>(bytes.substr(at, 8))[0];
    REQUIRE(at + 16 + size <= bytes.size());
    found.push_back(parse(bytes.substr(at + 12, size)));
    at += 16 + size;
  }
  return found;
}

}  // namespace

TEST_CASE("event file: scalars and histograms, record by record") {
  const TempDirectory directory;
  nn::EventFile file(directory.file("run"));
  CHECK(file.scalar("loss", 3, 0.5));
  CHECK(file.histogram("weights", 4, from({-2.0, -2.0, 0.0, 1.0, 3.0})));
  const std::vector<Message> found = events(file.path());
  REQUIRE(found.size() == 3);
  CHECK(only(found[0], 3) == "brain.Event:2");
  CHECK(numbers<double>(only(found[0], 1))[0] > 1.7e9);

  const Message scalar = parse(only(parse(only(found[1], 5)), 1));
  CHECK(only(found[1], 2) == "3");
  CHECK(only(scalar, 1) == "loss");
  CHECK(numbers<float>(only(scalar, 2)) == std::vector<float>{0.5f});

  const Message histogram = parse(only(parse(only(parse(only(found[2], 5)), 1)), 5));
  CHECK(numbers<double>(only(histogram, 1)) == std::vector<double>{-2});
  CHECK(numbers<double>(only(histogram, 2)) == std::vector<double>{3});
  CHECK(numbers<double>(only(histogram, 3)) == std::vector<double>{5});
  CHECK(numbers<double>(only(histogram, 4)) == std::vector<double>{0});
  CHECK(numbers<double>(only(histogram, 5)) == std::vector<double>{18});
  const auto limits = numbers<double>(only(histogram, 6)),
             counts = numbers<double>(only(histogram, 7));
  CHECK(counts == std::vector<double>{2, 1, 1, 1});
  REQUIRE(limits.size() == 4);
  CHECK((limits[0] >= -2 && limits[0] < 0 && limits[1] > 0 && limits[1] < 1 && limits[2] >= 1 &&
         limits[3] >= 3));
}

TEST_CASE("event file: checksums are those of the format") {
  // The first record's length is that of the version event, 24 bytes; checksums by another program.
  const TempDirectory directory;
  const nn::EventFile file(directory.file("run"));
  const std::string bytes = read_bytes(file.path());
  REQUIRE(bytes.size() == 40);
  CHECK(bytes.substr(0, 12) == std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
}

TEST_CASE("event file: from Progress, beside other runs, and where it cannot be written") {
  const TempDirectory directory;
  const std::string folder = directory.file("runs");
  for (int run = 0; run < 2; ++run) {
    nn::Progress progress({.steps = 3, .events = folder, .out = nullptr});
    for (int step = 0; step < 3; ++step) {
      progress.step(scalar_tensor(1.0 / (step + 1)), {.lr = 0.1, .extra = {{"accuracy", 0.5}}});
    }
  }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++files;
    std::map<std::string, int> points;
    for (const Message& event : events(entry.path())) {
      if (event.count(5) == 0) continue;
      ++points[only(parse(only(parse(only(event, 5)), 1)), 1)];
    }
    CHECK(points["loss"] == 3);
    CHECK(points["learning rate"] == 3);
    CHECK(points["accuracy"] == 3);
  }
  CHECK(files == 2);
  expect_error([&] { const nn::EventFile file(directory.file("no/such")); }, "EventFile",
               "no/such");
}
