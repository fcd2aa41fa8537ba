#pragma once
// The published tables of the fused operators, and ours beside them.
//
// How memory is measured, ours as published: everything that a run needs is made first and stays
// alive (inputs, in backward the output and the upstream gradient; flao's upstream gradient in
// forward, too). Then the call is made 20 times, each time the peak of live bytes during the call
// is taken, and the table has the mean of the peaks in MiB. Forward is recorded on a tape and its
// result dropped at once; tpa_decode is not recorded, because the published one has no backward.
// Backward walks the same tape again and again, and gradients are kept and added to, so that the
// published figures are (first + 19 later) / 20, with a gradient and a fresh dx beside it in the
// later ones; ours are the same each time, because backward adds where the gradient is. The
// published figures count blocks of a caching allocator, ours requested bytes rounded up to 512.
// Time is measured as published as well: warm up for 25 ms, then call for 100 ms with the caches
// flushed before each call; the table has the mean in ms.
#include <compare>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "quipu/core/report/device_timing.h"
#include "quipu/core/tensor.h"

namespace quipu::bench {

enum class Kind { memory, speed };
enum class Pass { fwd, bwd };
const char* name_of(Kind kind);
const char* name_of(Pass pass);

/// One published file.
struct PublishedTable {
  std::string family;  // "act", "lrpe_rotate", "lrpe_cosine", "tpa_decode" or "flao"
  std::string name;    // of the file, without .csv
  Kind kind = Kind::memory;
  Pass pass = Pass::fwd;
  std::string device;  // that it was measured on, as titled
  std::string axis;    // name of the first column
  std::int64_t batch = 0;
  std::vector<std::string> columns;
  struct Row {
    std::int64_t n = 0;
    std::vector<double> values;
  };
  std::vector<Row> rows;

  double best(std::size_t row) const;  // the smallest value of a row
};

/// All files in the folders of `directory`, sorted by name.
std::vector<PublishedTable> read_published(const std::string& directory);
/// Where they are, in the tree and when installed.
std::string published_directory();

/// One way to call our operator, ready to run.
struct Prepared {
  std::vector<Tensor> held;          // alive as long as the run
  std::function<Tensor()> call;      // forward
  bool recorded = true;              // forward runs under a tape
  bool upstream_in_forward = false;  // the harness holds an upstream gradient in forward, too
};
enum class Values { zero, normal };
struct Size {
  std::int64_t n = 0, batch = 0;
  std::int64_t heads = 12;  // as published, but for tpa_decode, which has always 32
  auto operator<=>(const Size&) const = default;
};
struct Variant {
  std::string column;   // "ours", "ours_keep_kv"
  std::string meaning;  // in a few words
  /// A tape is open in backward.
  std::function<Prepared(Device device, Size size, Values values)> prepare;
};
/// Our columns of a table.
std::vector<Variant> variants_of(const PublishedTable& table);
/// How long the sequence of a row is; n is the side of a grid in some tables.
std::int64_t tokens_of(const PublishedTable& table, std::int64_t n);

/// Makes everything that one cell needs and calls f with what is to be measured: a forward, or a
/// backward that adds to gradients from its second call on.
using Call = std::function<Tensor()>;
void with_run(const Variant& variant, Pass pass, Device device, Size size, Values values,
              const std::function<void(const Call&)>& f);
/// Mean of the peaks in bytes.
double measure_memory(const Variant& variant, Pass pass, Device device, Size size,
                      int repeats = 20);
/// The time of one call, by the device's own clock. Nothing between its ends makes the host wait.
class TimedRegion {
 public:
  explicit TimedRegion(const Device& device) : start_(device), end_(device) {}
  void run(const Call& call);
  /// Waits for the device.
  double milliseconds() const { return static_cast<double>(end_.ns_since(start_)) * 1e-6; }

 private:
  detail::TimeMark start_, end_;
};
/// Mean time of a call in ms, each after caches were flushed.
double measure_speed(const Variant& variant, Pass pass, Device device, Size size);

/// A published table with our columns.
struct Comparison {
  const PublishedTable* published = nullptr;
  Device device;  // of our columns
  std::vector<Variant> variants;
  struct Row {
    std::size_t index = 0;     // in the published rows
    std::vector<double> ours;  // NaN where there is no figure; a note says why
    double limit = 0;          // of predictions: ms that the least bytes take at full bandwidth
  };
  std::vector<Row> rows;
  std::string predicted_for;  // a card; empty where ours are measured
  std::vector<std::string> notes;
};
/// Rows with more than max_n tokens are left out; 0: none.
Comparison compare_with(const PublishedTable& table, Device device, std::int64_t max_n,
                        int repeats = 20);

/// How many of our figures are below, equal to and above the best published ones.
struct Tally {
  int below = 0, equal = 0, above = 0;
};
Tally tally(const std::vector<Comparison>& comparisons);

/// Where a table is predicted, how that is done and what it leaves out; a few sentences.
std::string how_predicted();

/// The largest rows, and how many figures are below the best published ones.
std::string summary_of_predictions(const std::vector<Comparison>& comparisons);

std::string as_text(const Comparison& comparison);
std::string as_csv(const Comparison& comparison);
/// One page with all of them, without anything from outside.
std::string as_html(const std::vector<Comparison>& comparisons);

}  // namespace quipu::bench
