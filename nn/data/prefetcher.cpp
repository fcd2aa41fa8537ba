#include "quipu/nn/data/prefetcher.h"

#include <unistd.h>

#include <exception>
#include <utility>

namespace quipu::nn::detail {

Prefetcher::Prefetcher(Fill fill) : self_(std::make_unique<Shared>()), process_(::getpid()) {
  self_->fill = std::move(fill);
  try {
    self_->thread = std::thread([shared = self_.get()] { shared->run(); });
  } catch (const std::exception&) {  // there is none to be had, or no memory for it
  }
}

Prefetcher::~Prefetcher() {
  if (!of_this_process()) {
    self_->queue.clear();
    // Locks and conditions still wait for a thread of the parent: they cannot be destroyed.
    static_cast<void>(self_.release());
    return;
  }
  {
    const std::lock_guard lock(self_->mutex);
    self_->stop = true;
  }
  self_->work.notify_one();
  if (self_->thread.joinable()) self_->thread.join();
}

bool Prefetcher::of_this_process() const {
  return process_ == ::getpid();
}

void Prefetcher::push(const BatchPosition& position, Batch batch) {
  {
    const std::lock_guard lock(self_->mutex);
    self_->queue.push_back({position, std::move(batch), false, {}});
  }
  self_->work.notify_one();
}

Batch Prefetcher::take() {
  std::unique_lock lock(self_->mutex);
  const bool alone = !self_->thread.joinable();
  self_->filled.wait(lock, [&] { return alone || self_->queue.front().filled; });
  Entry entry = std::move(self_->queue.front());
  self_->queue.pop_front();
  if (!alone) --self_->started;
  lock.unlock();
  if (alone) self_->fill(entry.position, entry.batch);
  if (entry.error) std::rethrow_exception(entry.error);
  return std::move(entry.batch);
}

void Prefetcher::Shared::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    work.wait(lock, [&] { return stop || started < queue.size(); });
    if (stop) return;
    Entry& entry = queue[started++];
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(entry.position, entry.batch);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    entry.error = std::move(error);
    entry.filled = true;
    filled.notify_one();
  }
}

}  // namespace quipu::nn::detail
