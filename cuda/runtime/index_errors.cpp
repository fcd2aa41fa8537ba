#include "index_errors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/error.h"

namespace quipu::detail::on_cuda {

/// What the message needs that the device does not know.
struct Check {
  const char* operation;  // a literal
  Shape shape;            // of the indices
  IndexWords words;
  bool operator==(const Check&) const = default;
};

/// A note, and what one thread has asked kernels to check since its last synchronisation.
struct IndexLog {
  IndexNote* note = nullptr;
  std::uint64_t streams = 0;  // a bit for each that such kernels were queued on
  std::vector<Check> checks;  // equal ones once
};

namespace {

/// The logs of a device that no thread has at present.
struct Unowned {
  std::mutex mutex;
  std::vector<std::unique_ptr<IndexLog>> pending;  // of threads that ended before they synchronised
  std::vector<std::unique_ptr<IndexLog>> unused;   // without checks: the next thread takes one
  std::atomic<std::size_t> pending_count{0};
};

Unowned& unowned_of(int device) {
  static auto* all = new std::array<Unowned, Device::max_index>;
  return (*all)[static_cast<std::size_t>(device)];
}

/// Leaves a log to others, which calls nothing of CUDA.
void leave(int device, std::unique_ptr<IndexLog> log) {
  Unowned& unowned = unowned_of(device);
  const std::lock_guard lock(unowned.mutex);
  const bool is_pending = !log->checks.empty() && log->streams != 0;
  if (!is_pending) log->checks.clear();
  (is_pending ? unowned.pending : unowned.unused).push_back(std::move(log));
  unowned.pending_count = unowned.pending.size();
}

/// This thread's logs, by device; made at their first use. When the thread ends they are left to
/// others.
class ThreadLogs {
 public:
  ThreadLogs() = default;
  ThreadLogs(const ThreadLogs&) = delete;
  ThreadLogs& operator=(const ThreadLogs&) = delete;
  ~ThreadLogs() {
    for (std::size_t device = 0; device < logs_.size(); ++device) {
      if (logs_[device]) leave(static_cast<int>(device), std::move(logs_[device]));
    }
  }
  std::unique_ptr<IndexLog>& operator[](int device) {
    return logs_[static_cast<std::size_t>(device)];
  }
  /// Of graphs that this thread has replayed since its last synchronisation.
  std::vector<std::shared_ptr<IndexLog>>& replayed(int device) {
    return replayed_[static_cast<std::size_t>(device)];
  }
  IndexLog* recording = nullptr;  // of the graph that this thread records

 private:
  std::array<std::unique_ptr<IndexLog>, Device::max_index> logs_;
  std::array<std::vector<std::shared_ptr<IndexLog>>, Device::max_index> replayed_;
};

ThreadLogs& thread_logs() {
  static thread_local ThreadLogs logs;
  return logs;
}

std::unique_ptr<IndexLog> take_log(int device) {
  {
    Unowned& unowned = unowned_of(device);
    const std::lock_guard lock(unowned.mutex);
    if (!unowned.unused.empty()) {
      std::unique_ptr<IndexLog> log = std::move(unowned.unused.back());
      unowned.unused.pop_back();
      return log;
    }
  }
  auto log = std::make_unique<IndexLog>();
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, sizeof(IndexNote)), "cudaMalloc");
  check_cuda(cudaMemset(memory, 0, sizeof(IndexNote)), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  log->note = static_cast<IndexNote*>(memory);
  return log;
}

int number_of(std::vector<Check>& checks, const Check& check) {
  for (std::size_t i = 0; i < checks.size(); ++i) {
    if (checks[i] == check) return static_cast<int>(i);
  }
  checks.push_back(check);
  return static_cast<int>(checks.size()) - 1;
}

std::string message(const Check& check, const IndexNote& found) {
  Dims place = check.shape;
  std::int64_t position = found.position();
  for (int d = place.size() - 1; d >= 0; --d) {
    place[d] = position % check.shape[d];
    position /= check.shape[d];
  }
  const std::string value = check.words.shows_value
                                ? detail::concat(" is ", static_cast<std::int64_t>(found.value))
                                : std::string();
  return detail::concat(check.operation, ": ", check.words.name, " at ", place, value,
                        check.words.rest);
}

}  // namespace

IndexGuard index_guard(const Queue& queue, const View& index, std::int64_t size, int axis) {
  return index_guard(queue, index,
                     {"index", detail::concat(", but x has size ", size, " in dimension ", axis)});
}

IndexGuard index_guard(const Queue& queue, const View& index, IndexWords words) {
  IndexLog* log = thread_logs().recording;
  if (!log) {
    std::unique_ptr<IndexLog>& own = thread_logs()[queue.device];
    if (!own) own = take_log(queue.device);
    log = own.get();
  }
  log->streams |= std::uint64_t{1} << queue.number;
  const char* name = thread_context().op;
  return {log->note,
          number_of(log->checks, {name ? name : "index", index.shape, std::move(words)})};
}

namespace {

/// What the kernels of a log have noted, or nothing.
std::string collect(int device, IndexLog& log) {
  if (log.checks.empty()) return {};
  // A note must not be read or wiped out half-written.
  for (int number = 0; number < most_streams; ++number) {
    if ((log.streams >> number & 1u) == 0) continue;
    check_cuda(cudaStreamSynchronize(stream_of(device, number)), "cudaStreamSynchronize");
  }
  IndexNote found{};
  check_cuda(cudaMemcpy(&found, log.note, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy");
  std::string text;
  if (found.priority != 0) {
    text = message(log.checks[static_cast<std::size_t>(found.check())], found);
    check_cuda(cudaMemset(log.note, 0, sizeof found), "cudaMemset");
    check_cuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  log.streams = 0;
  return text;
}

/// The same for threads that have ended.
std::string collect_pending(int device) {
  Unowned& unowned = unowned_of(device);
  std::string text;
  while (text.empty() && unowned.pending_count > 0) {
    const std::lock_guard lock(unowned.mutex);
    if (unowned.pending.empty()) break;
    text = collect(device, *unowned.pending.back());
    unowned.pending.back()->checks.clear();
    unowned.unused.push_back(std::move(unowned.pending.back()));
    unowned.pending.pop_back();
    unowned.pending_count = unowned.pending.size();
  }
  return text;
}

}  // namespace

RecordedChecks::RecordedChecks(int device)
    : device_(device), log_(take_log(device).release(), [device](IndexLog* log) {
        leave(device, std::unique_ptr<IndexLog>(log));
      }) {
  thread_logs().recording = log_.get();
}

RecordedChecks::~RecordedChecks() {
  end();
}

void RecordedChecks::end() {
  if (thread_logs().recording == log_.get()) thread_logs().recording = nullptr;
}

void RecordedChecks::queued(const Queue& queue) {
  if (log_->checks.empty()) return;
  log_->streams |= std::uint64_t{1} << queue.number;
  auto& replayed = thread_logs().replayed(device_);
  if (std::find(replayed.begin(), replayed.end(), log_) == replayed.end()) {
    replayed.push_back(log_);
  }
}

void throw_index_errors(int device) {
  std::string text;
  if (const std::unique_ptr<IndexLog>& log = thread_logs()[device]) {
    text = collect(device, *log);
    log->checks.clear();
  }
  auto& replayed = thread_logs().replayed(device);
  while (text.empty() && !replayed.empty()) {
    text = collect(device, *replayed.back());
    replayed.pop_back();
  }
  if (text.empty()) text = collect_pending(device);
  if (!text.empty()) throw Error(text);
}

}  // namespace quipu::detail::on_cuda
