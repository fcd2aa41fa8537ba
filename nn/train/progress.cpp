#include "quipu/nn/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "quipu/core/memory/memory.h"
#include "quipu/nn/named_state.h"
#include "quipu/nn/train/progress_line.h"

namespace quipu::nn {
using namespace quipu::detail;
using namespace detail;
namespace {

constexpr double redraw_seconds = 0.1;
constexpr double window_seconds = 10;       // that rates are taken from
constexpr double longest_wait = 30;         // between plain lines
constexpr std::size_t most_records = 8192;  // of the history

bool is_terminal(std::FILE* out) {
  if (out == nullptr || !isatty(fileno(out))) return false;
  const char* const kind = std::getenv("TERM");
  return kind == nullptr || std::strcmp(kind, "dumb") != 0;
}

int terminal_width(std::FILE* out) {
  winsize size{};
  const bool known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

/// By the variables that decide it for every program.
bool terminal_takes_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    const std::string text(value);
    return text.find("UTF-8") != std::string::npos || text.find("utf8") != std::string::npos ||
           text.find("utf-8") != std::string::npos;
  }
  return false;
}

double median_of(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string extra_text(const StepRecord& record) {
  std::string text;
  for (const auto& [name, value] : record.extra) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, short_number(value));
  }
  return text;
}

}  // namespace

Progress::Progress(const ProgressOptions& options)
    : options_(options),
      live_(is_terminal(options.out)),
      utf8_(terminal_takes_utf8()),
      start_ns_(quipu::detail::now_ns()),
      done_(options.first_step) {
  check(options.steps >= 0 && options.first_step >= 0 && options.first_step <= most_steps,
        "Progress: steps is ", options.steps, " and first_step is ", options.first_step,
        ", but they count from 0, and a run begins at no more than 2^53");
  if (!options.log.empty()) log_.emplace(options.log, options.first_step, options.unit);
  if (!options.events.empty()) events_.emplace(options.events);
  recent_.push_back({0, 0, done_});
}

Progress::~Progress() {
  finish();
}

double Progress::seconds() const {
  return static_cast<double>(quipu::detail::now_ns() - start_ns_) * 1e-9;
}

RunFigures Progress::figures() const {
  RunFigures result{.history = history_,
                    .unit = options_.unit,
                    .device = options_.device,
                    .steps = done_,
                    .own_steps = done_ - options_.first_step};
  if (!last_) return result;
  result.seconds = last_->seconds;
  result.median_seconds = median_of(durations_);
  if (last_->seconds > 0) result.mean_rate = count_ / last_->seconds;
  result.peak = last_->peak;
  return result;
}

bool Progress::due(double now) const {
  if (options_.out == nullptr) return false;
  if (shown_at_ < 0 || done_ == options_.steps) return true;
  return now - shown_at_ >= (live_ ? redraw_seconds : wait_);
}

StepRecord Progress::record(double now, const Tensor& loss, const StepReport& report,
                            bool read) const {
  const MemoryStats memory = memory_stats(options_.device);
  StepRecord result{.step = done_,
                    .lr = report.lr,
                    .memory = memory.current,
                    .peak = memory.peak,
                    .seconds = now,
                    .extra = report.extra};
  const bool free_to_read =
      loss.defined() && !loss.device().is_meta() && loss.device().kind() == DeviceKind::cpu;
  if (loss.defined() && !loss.device().is_meta() && (read || free_to_read)) {
    result.loss = loss.item();
  }
  const Moment& old = recent_.front();
  if (now > old.seconds) result.rate = (count_ - old.count) / (now - old.seconds);
  return result;
}

void Progress::step(const Tensor& loss, const StepReport& report) {
  check_metric_names(report.extra, options_.unit);
  const double now = seconds();
  ++done_;
  count_ += report.count;
  durations_.push_back(static_cast<float>(now - (last_ ? last_->seconds : 0)));
  const bool show_it = due(now);
  last_ = record(now, loss, report, show_it || log_ || events_);
  if (now - recent_.back().seconds >= redraw_seconds) recent_.push_back({now, count_, done_});
  while (recent_.size() > 2 && now - recent_[1].seconds > window_seconds) recent_.pop_front();
  if (log_ && !log_->write(*last_)) {
    log_.reset();
    note("cannot write to the log " + options_.log + " any more: " + std::strerror(errno));
  }
  if (events_) write_events(*last_);
  remember(*last_);
  if (show_it) show(*last_, done_ == options_.steps);
}

void Progress::write_events(const StepRecord& record) {
  bool written = events_->scalar(options_.unit + " per second", record.step, record.rate);
  if (record.loss) written = events_->scalar("loss", record.step, *record.loss) && written;
  if (record.lr) written = events_->scalar("learning rate", record.step, *record.lr) && written;
  for (const auto& [name, value] : record.extra) {
    written = events_->scalar(name, record.step, value) && written;
  }
  if (written) return;
  note("cannot write to " + events_->path() + " any more: " + std::strerror(errno));
  events_.reset();
}

/// Keeps every so manieth step, more rarely the longer the run gets.
void Progress::remember(const StepRecord& record) {
  if (record.step % keep_every_ != 0 && record.step != options_.steps) return;
  history_.push_back(record);
  if (history_.size() <= most_records) return;
  keep_every_ *= 2;
  std::erase_if(history_, [&](const StepRecord& r) { return r.step % keep_every_ != 0; });
}

std::optional<double> Progress::seconds_left() const {
  const Moment& old = recent_.front();
  if (options_.steps == 0 || done_ <= old.step || !last_) return {};
  const double each = (last_->seconds - old.seconds) / static_cast<double>(done_ - old.step);
  return each * static_cast<double>(std::max<std::int64_t>(options_.steps - done_, 0));
}

void Progress::show(const StepRecord& record, bool over) {
  const ProgressFigures figures{.step = record.step,
                                .steps = options_.steps,
                                .loss = record.loss ? record.loss
                                        : shown_    ? shown_->loss
                                                    : std::nullopt,
                                .extra = extra_text(record),
                                .rate = record.rate,
                                .unit = options_.unit,
                                .memory = record.memory,
                                .peak = record.peak,
                                .seconds_left = over ? std::nullopt : seconds_left(),
                                .seconds_taken = over ? last_->seconds : std::optional<double>()};
  if (live_) {
    // The last column stays free: some terminals wrap when it is written.
    write("\r" + progress_line(figures, terminal_width(options_.out) - 1, utf8_) + "\x1b[K");
    line_open_ = true;
  } else {
    write(progress_line(figures, 1000, utf8_) + "\n");
    if (shown_at_ >= 0) wait_ = std::min(longest_wait, wait_ * 1.5);
  }
  shown_at_ = record.seconds;
  shown_ = record;
}

void Progress::note(const std::string& text) {
  if (options_.out == nullptr) return;
  if (line_open_) write("\r\x1b[K");
  write(text + "\n");
  if (line_open_ && shown_) show(*shown_, false);
}

void Progress::finish() {
  if (options_.out == nullptr) return;
  // On a terminal the last line says how long it took; elsewhere a step is not said twice.
  const bool said = shown_ && last_ && shown_->step == last_->step;
  if (last_ && (line_open_ || !said)) show(*last_, true);
  if (line_open_) write("\n");
  line_open_ = false;
}

void Progress::write(const std::string& text) const {
  std::fwrite(text.data(), 1, text.size(), options_.out);
  std::fflush(options_.out);
}

}  // namespace quipu::nn
