#pragma once
// The threads behind parallel_for.
//
// A call of parallel_for is a Job that the caller and a few workers work off together. Each of them
// has a part of the chunks that follow each other, so that a thread reads on where it has just read
// and finds in its caches what it left there in the last call; whoever is done helps the others.
// The caller waits for chunks, not for workers: one that wakes up too late finds nothing to do, so
// a call costs no more than the chunks it runs. Jobs are counted references for that reason, and
// any number of workers will do, also none.
//
// A worker is a thread with a seat where jobs are left for it. Waking a thread takes longer than
// many an operator runs, so it stays awake for a moment when it has nothing to do: in a training
// loop the next operator comes within microseconds. Internal to core/.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "quipu/core/context.h"
#include "quipu/core/threads/parallel.h"

namespace quipu::detail {

inline constinit thread_local bool inside_parallel_for = false;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

class InsideParallelFor {
 public:
  InsideParallelFor() : outer_(inside_parallel_for) { inside_parallel_for = true; }
  ~InsideParallelFor() { inside_parallel_for = outer_; }
  InsideParallelFor(const InsideParallelFor&) = delete;
  InsideParallelFor& operator=(const InsideParallelFor&) = delete;

 private:
  bool outer_;
};

// What threads count at has a cache line of its own.
class Job {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  /// For the caller and `tasks` workers; null where there is no memory.
  static Job* make(std::int64_t n, std::int64_t grain, std::int64_t chunks, ChunkFunction f,
                   int tasks) {
    const std::size_t bytes = sizeof(Job) + sizeof(Part) * static_cast<std::size_t>(tasks + 1);
    void* const memory = ::operator new(bytes, alignment, std::nothrow);
    return memory ? new (memory) Job(n, grain, chunks, f, tasks) : nullptr;
  }

  // Takes chunks until none is left, first those of one's own part. The caller's is 0.
  void work(int own) {
    std::int64_t finished = 0;
    {
      InsideParallelFor inside;
      for (int k = 0; k < parts_; ++k) {
        Part& part = this->part((own + k) % parts_);
        for (std::int64_t i; (i = part.next.fetch_add(1, std::memory_order_relaxed)) < part.end;) {
          run_chunk(i);
          ++finished;
        }
      }
    }
    if (finished > 0 &&
        finished_.fetch_add(finished, std::memory_order_acq_rel) + finished == chunks_)
      finished_.notify_one();
  }

  // What a worker of the pool does: errors and the ledger see the caller's operator and scope.
  void work_for_caller(int own) {
    ThreadContext& context = thread_context();
    const ThreadContext outer = context;
    context = context_;
    work(own);
    context = outer;
    release();
  }

  void wait() {
    // Chunks are short, and waking up costs more than some microseconds of looking.
    for (int i = 0; i < 2000 && finished_.load(std::memory_order_acquire) != chunks_; ++i)
      pause_briefly();
    for (std::int64_t now; (now = finished_.load(std::memory_order_acquire)) != chunks_;)
      finished_.wait(now, std::memory_order_acquire);
  }

  void release() {
    if (owners_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    this->~Job();
    ::operator delete(this, alignment);
  }

  std::exception_ptr take_exception() { return std::move(exception_); }

 private:
  static constexpr std::align_val_t alignment{64};

  /// Chunks that follow each other; they lie behind the job in memory.
  struct alignas(64) Part {
    std::atomic<std::int64_t> next;
    std::int64_t end;
  };

  Job(std::int64_t n, std::int64_t grain, std::int64_t chunks, ChunkFunction f, int tasks)
      : n_(n),
        grain_(grain),
        chunks_(chunks),
        f_(f),
        context_(thread_context()),
        parts_(tasks + 1),
        owners_(tasks + 1) {
    for (int i = 0; i < parts_; ++i) new (&part(i)) Part{first_of(i), first_of(i + 1)};
  }
  ~Job() = default;

  std::int64_t first_of(int part) const {
    return chunks_ / parts_ * part + std::min<std::int64_t>(part, chunks_ % parts_);
  }
  Part& part(int i) { return reinterpret_cast<Part*>(this + 1)[i]; }

  // After an exception only those before it are run, so that the first of those that throw is
  // always the same.
  void run_chunk(std::int64_t i) {
    if (i > failed_.load(std::memory_order_relaxed)) return;
    try {
      f_(i * grain_, i == chunks_ - 1 ? n_ : (i + 1) * grain_);
    } catch (...) {
      std::lock_guard lock(exception_mutex_);
      if (i > failed_.load()) return;
      exception_ = std::current_exception();
      failed_.store(i);
    }
  }

  const std::int64_t n_, grain_, chunks_;
  const ChunkFunction f_;
  const ThreadContext context_;
  const int parts_;
  std::exception_ptr exception_;
  std::mutex exception_mutex_;
  std::atomic<std::int64_t> failed_{std::numeric_limits<std::int64_t>::max()};
  std::atomic<int> owners_;
  alignas(64) std::atomic<std::int64_t> finished_{0};
};

/// Address space that the stacks of new threads must leave free for data, where a limit is set.
class Reserve {
 public:
  Reserve() : data_(::mmap(nullptr, bytes, PROT_NONE, flags, -1, 0)) {}
  ~Reserve() {
    if (is_there()) ::munmap(data_, bytes);
  }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  bool is_there() const { return data_ != MAP_FAILED; }

 private:
  static constexpr std::size_t bytes = std::size_t{64} << 20;
  static constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* data_;
};

class Workers {
 public:
  /// As many as the system has threads for, at most `wanted`.
  explicit Workers(int wanted)
      : seats_(std::make_unique<Seat[]>(static_cast<std::size_t>(wanted))) {
    const Reserve reserve;
    try {
      for (; count_ < wanted && reserve.is_there(); ++count_) {
        Seat& mine = seats_[static_cast<std::size_t>(count_)];
        mine.thread = std::thread([&mine, part = count_ + 1] { work(mine, part); });
      }
    } catch (const std::exception&) {  // no more threads, or no memory for their stacks
    }
  }
  ~Workers() {
    for (int i = 0; i < count_; ++i) leave(stop, i);
    for (int i = 0; i < count_; ++i) seats_[static_cast<std::size_t>(i)].thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return count_; }

  /// Hands a job to `wanted` workers, at most count(): first to those that have nothing to do. One
  /// that has not even begun with what was left for it before is behind, and gets this one instead.
  void hand_out(Job* job, int wanted) {
    for (int i = 0; i < count_ && wanted > 0; ++i) {
      Job* found = open;
      wanted -= seat(i).compare_exchange_strong(found, job, std::memory_order_acq_rel);
    }
    for (int i = 0; i < count_ && wanted > 0; ++i) wanted -= leave(job, i);
  }

 private:
  struct alignas(64) Seat {
    std::atomic<Job*> job{nullptr};  // null: asleep
    std::atomic<int> calls{0};       // to wake up; an int, which the system can wait for by itself
    std::thread thread;
  };
  inline static Job* const open = reinterpret_cast<Job*>(alignof(Job));  // awake, and no job yet
  inline static Job* const stop = reinterpret_cast<Job*>(2 * alignof(Job));  // shall end

  std::atomic<Job*>& seat(int i) { return seats_[static_cast<std::size_t>(i)].job; }

  /// Leaves a job at a seat, in place of what may be there, unless it is this one.
  bool leave(Job* job, int i) {
    Job* found = seat(i).load(std::memory_order_relaxed);
    do {
      if (found == job) return false;
    } while (!seat(i).compare_exchange_weak(found, job, std::memory_order_acq_rel));
    if (found == nullptr) {
      std::atomic<int>& calls = seats_[static_cast<std::size_t>(i)].calls;
      calls.fetch_add(1, std::memory_order_release);
      calls.notify_one();
    } else if (found != open) {
      found->release();
    }
    return true;
  }

  static void work(Seat& mine, int part) {
    for (;;) {
      sleep(mine);
      Job* job = mine.job.exchange(open, std::memory_order_acq_rel);
      for (; job != nullptr; job = next(mine.job)) {
        if (job == stop) return;
        job->work_for_caller(part);
      }
    }
  }

  static void sleep(Seat& mine) {
    for (;;) {
      const int heard = mine.calls.load(std::memory_order_acquire);  // before the look at the seat
      if (mine.job.load(std::memory_order_acquire) != nullptr) return;
      mine.calls.wait(heard, std::memory_order_acquire);
    }
  }

  /// What is left at the seat, if something comes soon; else null, and the seat says so.
  static Job* next(std::atomic<Job*>& mine) {
    const auto end = std::chrono::steady_clock::now() + stays_awake;
    do {
      for (int i = 0; i < 32; ++i) {
        if (mine.load(std::memory_order_relaxed) != open) {
          return mine.exchange(open, std::memory_order_acq_rel);
        }
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < end);
    Job* found = open;
    if (mine.compare_exchange_strong(found, nullptr, std::memory_order_acq_rel)) return nullptr;
    return mine.exchange(open, std::memory_order_acq_rel);
  }

  static constexpr std::chrono::microseconds stays_awake{200};
  std::unique_ptr<Seat[]> seats_;
  int count_ = 0;
};

}  // namespace quipu::detail
