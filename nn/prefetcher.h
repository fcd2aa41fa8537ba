#pragma once
// A thread that fills batches one after another, ahead of who takes them.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "quipu/nn/dataset.h"

namespace quipu::nn {

/// Which batch: its epoch and its number in there.
struct BatchPosition {
  std::int64_t epoch = 0, batch = 0;
};

/// Queues batches whose memory is there, fills them on its thread and gives them back in order.
class Prefetcher {
 public:
  using Fill = std::function<void(const BatchPosition&, const Batch&)>;
  explicit Prefetcher(Fill fill);
  ~Prefetcher();  // when the running call of `fill` has ended

  std::size_t size() const { return queue_.size(); }
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
  void run();

  Fill fill_;
  std::mutex mutex_;
  std::condition_variable work_, filled_;
  // Only the owner adds and removes, both at the ends; so entries stay where they are.
  std::deque<Entry> queue_;
  std::size_t started_ = 0;  // entries at the front that the thread has taken up
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace quipu::nn
