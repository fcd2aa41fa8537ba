#pragma once
// What is known of each step of a run, and a file of it: one JSON object a line.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quipu::nn {

/// One step: a line of the log, and a point of the curves on the run's page.
struct StepRecord {
  std::int64_t step = 0;            // how many were done with this one
  std::optional<double> loss = {};  // none: it was not read
  std::optional<double> lr = {};    // none: not reported
  double rate = 0;                  // units a second, of late; 0: not known yet
  std::size_t memory = 0;           // bytes in use after the step
  std::size_t peak = 0;             // the most bytes so far
  double seconds = 0;               // since the start of the run
  std::vector<std::pair<std::string, double>> extra = {};  // metrics of the program's own
};

namespace detail {

/// An error if a metric is called as something else that the log has of a step, or as another one.
void check_metric_names(const std::vector<std::pair<std::string, double>>& extra,
                        const std::string& unit);

class RunLog {
 public:
  /// Begins the file, or goes on with it after step `first_step`: what it has of later steps, from
  /// a run that was killed, is left out.
  RunLog(const std::string& path, std::int64_t first_step, const std::string& unit);
  /// The line is in the system's hands when it returns. Numbers that are not finite become null.
  /// False, from the first failure on: the disk may be full, and a log is no reason to stop.
  bool write(const StepRecord& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string rate_name_;
};

}  // namespace detail

}  // namespace quipu::nn
