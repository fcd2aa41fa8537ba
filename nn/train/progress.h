#pragma once
// Shows where a run is: one live line on a terminal, a plain line now and then elsewhere, and a log
// of all steps if asked.
//
//   nn::Progress progress({.steps = 2000, .unit = "tokens", .log = "run.jsonl"});
//   while (progress.done() < 2000 && !nn::stop_requested()) {
//     ...
//     progress.step(loss, {.count = batch * length, .lr = optimizer.lr()});
//   }
//   progress.finish();
#include <cstdio>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "quipu/core/tensor.h"
#include "quipu/nn/train/event_file.h"
#include "quipu/nn/train/interrupt.h"
#include "quipu/nn/train/run_log.h"

namespace quipu::nn {

/// What is shown of a run, and where.
struct ProgressOptions {
  std::int64_t steps = 0;        // how many there will be; 0: nobody knows
  std::int64_t first_step = 0;   // how many were done before, when a run goes on
  std::string unit = "samples";  // what StepReport::count counts; rates are units a second
  std::string log = {};          // a file for one JSON object a step; empty: none
  std::string events = {};       // a folder for TensorBoard; empty: none
  Device device = {};            // whose memory is shown
  std::FILE* out = stdout;       // nullptr: nothing is shown
};

/// What a step reports beside its loss.
struct StepReport {
  double count = 0;                                        // units that it has worked through
  std::optional<double> lr = {};                           // for log and run page
  std::vector<std::pair<std::string, double>> extra = {};  // "accuracy", 0.97
};

/// A run so far, for its page.
struct RunFigures {
  std::vector<StepRecord> history = {};  // steps that were read, evenly thinned out to thousands
  std::string unit = "samples";          // of the rates
  Device device = {};                    // whose memory is meant
  std::int64_t steps = 0;                // done, those of earlier runs included
  std::int64_t own_steps = 0;            // done in this run
  double seconds = 0;                    // that this run took
  double median_seconds = 0;             // of a step
  double mean_rate = 0;                  // units a second
  std::size_t peak = 0;                  // of memory, in bytes
};

/// One for each run. While it lives, signals ask the loop to stop (StopOnInterrupt).
class Progress {
 public:
  /// A log or folder of events that cannot be written is an error here.
  explicit Progress(const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// One step is done. The loss may be undefined. It is read when it is shown or logged, and on the
  /// CPU, where that costs nothing, always.
  void step(const Tensor& loss, const StepReport& report = {});
  /// A line of its own above the live one: "checkpoint saved to ...".
  void note(const std::string& text);
  /// Ends the live line. Also done when it goes out of scope.
  void finish();

  /// Steps, those of earlier runs (first_step) included.
  std::int64_t done() const { return done_; }
  /// For a RunPage; at any time.
  RunFigures figures() const;

 private:
  struct Moment {
    double seconds;
    double count;
    std::int64_t step;
  };
  double seconds() const;  // since the start
  bool due(double now) const;
  StepRecord record(double now, const Tensor& loss, const StepReport& report, bool read) const;
  void remember(const StepRecord& record);
  void write_events(const StepRecord& record);
  void show(const StepRecord& record, bool over);
  std::optional<double> seconds_left() const;
  void write(const std::string& text) const;

  ProgressOptions options_;
  StopOnInterrupt interrupt_;
  std::optional<detail::RunLog> log_;
  std::optional<EventFile> events_;
  bool live_;  // on a terminal
  bool utf8_;
  bool line_open_ = false;
  std::int64_t start_ns_;
  std::int64_t done_;
  double count_ = 0;
  double shown_at_ = -1;
  double wait_ = 1;  // seconds until the next plain line
  std::optional<StepRecord> last_, shown_;
  std::deque<Moment> recent_;
  std::vector<float> durations_;
  std::vector<StepRecord> history_;
  std::int64_t keep_every_ = 1;
};

}  // namespace quipu::nn
