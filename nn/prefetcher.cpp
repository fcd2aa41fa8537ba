#include "quipu/nn/prefetcher.h"

#include <utility>

namespace quipu::nn {

Prefetcher::Prefetcher(Fill fill) : fill_(std::move(fill)), thread_([this] { run(); }) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void Prefetcher::push(const BatchPosition& position, Batch batch) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({position, std::move(batch), false, {}});
  }
  work_.notify_one();
}

Batch Prefetcher::take() {
  std::unique_lock lock(mutex_);
  filled_.wait(lock, [&] { return queue_.front().filled; });
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  --started_;
  lock.unlock();
  if (entry.error) std::rethrow_exception(entry.error);
  return std::move(entry.batch);
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stop_ || started_ < queue_.size(); });
    if (stop_) return;
    Entry& entry = queue_[started_++];
    lock.unlock();
    std::exception_ptr error;
    try {
      fill_(entry.position, entry.batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    entry.error = std::move(error);
    entry.filled = true;
    filled_.notify_one();
  }
}

}  // namespace quipu::nn
