#pragma once
// A system that has no more threads to give.

namespace quipu::testing {

/// While it lives, `threads` threads can be started and no more: pthread_create gives EAGAIN then.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  /// How many were asked for in vain.
  int refused() const;
};

}  // namespace quipu::testing
