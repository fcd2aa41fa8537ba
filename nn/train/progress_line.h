#pragma once
// The text of a progress line. Nothing here knows a clock or a terminal. Internal to nn/.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace quipu::nn::detail {

/// What is known at one moment of a run.
struct ProgressFigures {
  std::int64_t step = 0;   // how many are done
  std::int64_t steps = 0;  // how many there will be; 0: nobody knows
  std::optional<double> loss = {};
  std::string extra = {};  // the user's own, "accuracy 97.1 %"
  double rate = 0;         // of `unit` a second; 0: not known yet
  std::string unit = "samples";
  std::size_t memory = 0;
  std::size_t peak = 0;
  std::optional<double> seconds_left = {};
  std::optional<double> seconds_taken = {};  // of a run that is over
};

/// "step 120/2000 · loss 2.3145 · 18.2k tokens/s · memory 12.1 MiB · peak 40.3 MiB · 1:23 left".
/// What does not fit `width` columns is left out, the least important first.
std::string progress_line(const ProgressFigures& figures, int width, bool utf8 = true);

/// "18.2k", three digits that count.
std::string short_number(double value);
/// "1:23", "2:05:10", "0.8 s".
std::string short_time(double seconds);
/// Columns on a terminal: characters, not bytes.
int columns_of(const std::string& utf8_text);

}  // namespace quipu::nn::detail
