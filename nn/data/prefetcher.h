#pragma once
// A thread that fills batches one after another, ahead of who takes them. Internal to nn/.
#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "quipu/nn/data/dataset.h"

namespace quipu::nn::detail {

/// Which batch: its epoch and its number in there.
struct BatchPosition {
  std::int64_t epoch = 0, batch = 0;
};

/// Queues batches whose memory is there, fills them on its thread and gives them back in order.
/// Where the system has no thread to give, a batch is filled when it is taken.
class Prefetcher {
 public:
  using Fill = std::function<void(const BatchPosition&, const Batch&)>;
  explicit Prefetcher(Fill fill);
  ~Prefetcher();  // when the running call of `fill` has ended
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// A forked child has no thread that would fill what is queued. There it can only be destroyed.
  bool of_this_process() const;
  std::size_t size() const { return self_->queue.size(); }
  void push(const BatchPosition& position, Batch batch);
  /// The oldest, when it is filled; or throws what filling it threw.
  Batch take();

 private:
  struct Entry {
    BatchPosition position;
    Batch batch;
    bool filled = false;
    std::exception_ptr error;
  };
  /// What the thread sees, too.
  struct Shared {
    Fill fill;
    std::mutex mutex;
    std::condition_variable work, filled;
    // Only the owner adds and removes, both at the ends; so entries stay where they are.
    std::deque<Entry> queue;
    std::size_t started = 0;  // entries at the front that the thread has taken up
    bool stop = false;
    std::thread thread;

    void run();
  };

  std::unique_ptr<Shared> self_;
  pid_t process_;
};

}  // namespace quipu::nn::detail
