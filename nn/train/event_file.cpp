// An event is a message of protocol buffers: its fields are a key (number and kind) and a value.
// Each is written as a record: its length, a checksum of that, the message, a checksum of that. The
// checksums are CRC-32C (Castagnoli), rotated and shifted, so that those of checksums differ.
#include "quipu/nn/train/event_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <system_error>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/text.h"

namespace quipu::nn {
using namespace quipu::detail;
namespace {

// Kinds of values: a number of seven bits a byte, eight or four bytes as they are, or bytes after
// their count.
enum Kind : unsigned { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

// Fields of the messages Event, Summary, Summary.Value and HistogramProto.
enum EventField : unsigned { wall_time = 1, step_number = 2, file_version = 3, summary = 5 };
enum SummaryField : unsigned { summary_value = 1 };
enum ValueField : unsigned { tag_name = 1, simple_value = 2, histogram_value = 5 };
enum HistogramField : unsigned {
  least = 1,
  most = 2,
  count = 3,
  total = 4,
  squares = 5,
  limits = 6,
  buckets = 7
};

std::string as_varint(std::uint64_t n) {
  std::string o;
  for (; n >= 128; n >>= 7) o += static_cast<char>(n | 128);
  return o + static_cast<char>(n);
}
template <class T>
std::string as_bytes(T number) {
  const auto raw = std::bit_cast<std::array<char, sizeof(T)>>(number);
  return {raw.begin(), raw.end()};
}
std::string key(unsigned field, Kind kind) {
  return as_varint(field << 3 | kind);
}
std::string field(unsigned number, double value) {
  return key(number, fixed64) + as_bytes(value);
}
std::string field(unsigned number, std::string_view value) {
  return key(number, bytes) + as_varint(value.size()) + std::string(value);
}

std::uint32_t crc32c(std::string_view data) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0u);
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : data)
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 255];
  return ~crc;
}
std::string checksum(std::string_view data) {
  return as_bytes(std::rotr(crc32c(data), 15) + 0xa282ead8u);
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event(std::int64_t step, std::string_view tag, const std::string& value) {
  return field(wall_time, now()) + key(step_number, varint) +
         as_varint(static_cast<std::uint64_t>(step)) +
         field(summary, field(summary_value, field(tag_name, tag) + value));
}

/// The upper limit of the bucket of a number: buckets grow by a tenth, and one is around 0.
double limit_of(double x) {
  constexpr double smallest = 1e-12, growth = 1.1;
  const double size = std::abs(x);
  if (size < smallest) return smallest;
  const double steps = std::log(size / smallest) / std::log(growth);
  // Below 0 the limit nearer to it is the upper one.
  return x > 0 ? smallest * std::pow(growth, std::floor(steps) + 1)
               : -smallest * std::pow(growth, std::ceil(steps) - 1);
}

std::string packed(unsigned number, const std::vector<double>& values) {
  std::string raw;
  for (const double v : values) raw += as_bytes(v);
  return field(number, raw);
}

/// The message HistogramProto of all finite numbers.
std::string histogram_of(const std::vector<double>& numbers) {
  std::map<double, double> filled;
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0, square_sum = 0, n = 0;
  for (const double x : numbers) {
    if (!std::isfinite(x)) continue;
    low = std::min(low, x), high = std::max(high, x);
    sum += x, square_sum += x * x, ++n;
    ++filled[limit_of(x)];
  }
  if (n == 0) low = high = 0;
  std::vector<double> ends, counts;
  for (const auto& [end, entries] : filled) {
    ends.push_back(end);
    counts.push_back(entries);
  }
  return field(least, low) + field(most, high) + field(count, n) + field(total, sum) +
         field(squares, square_sum) + packed(limits, ends) + packed(buckets, counts);
}

}  // namespace

EventFile::EventFile(const std::string& folder) {
  const OpScope op("EventFile");
  check(::mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST, "cannot make the folder ", folder,
        ": ", std::generic_category().message(errno));
  // TensorBoard looks for "tfevents" in names and takes the number for the time of the first event.
  for (int i = 0; !file_; ++i) {
    path_ = concat(folder, "/events.out.tfevents.", static_cast<std::int64_t>(now()), ".",
                   static_cast<std::int64_t>(::getpid()), ".", i);
    file_.reset(std::fopen(path_.c_str(), "wbxe"));
    check(file_ || errno == EEXIST, "cannot write ", path_, ": ",
          std::generic_category().message(errno));
  }
  write(field(wall_time, now()) + field(file_version, std::string_view("brain.Event:2")));
}

bool EventFile::write(const std::string& event) {
  if (!file_) return false;
  const std::string length = as_bytes(static_cast<std::uint64_t>(event.size()));
  const std::string record = length + checksum(length) + event + checksum(event);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() &&
                       std::fflush(file_.get()) == 0;
  if (!written) file_.reset();
  return written;
}

bool EventFile::scalar(std::string_view tag, std::int64_t step, double value) {
  const std::string number = key(simple_value, fixed32) + as_bytes(static_cast<float>(value));
  return write(event(step, tag, number));
}

bool EventFile::histogram(std::string_view tag, std::int64_t step, const Tensor& values) {
  const OpScope op("EventFile");
  check(!values.device().is_meta(), "the tensor is on ", values.device(), " and has no values");
  const std::string body = histogram_of(values.detach().to_vector());
  return write(event(step, tag, field(histogram_value, body)));
}

}  // namespace quipu::nn
