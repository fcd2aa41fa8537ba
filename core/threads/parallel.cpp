// The pool of workers: how many, when they are started and when they end.
#include "quipu/core/threads/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "quipu/core/error.h"
#include "quipu/core/threads/workers.h"

namespace quipu {
using namespace detail;
namespace {

constexpr int max_threads = 1024;

// Plain globals without destructors: statics of the user's may still run operators while the
// program ends.
constinit std::mutex pool_mutex;                // guards building and ending the pool
constinit std::atomic<Workers*> pool{nullptr};  // threads - 1 of them, built at first use
constinit std::atomic<int> threads{0};          // 0: not known yet
constinit bool ended = false;                   // the program is ending, run inline

int count_cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  int cores = sched_getaffinity(0, sizeof usable, &usable) == 0
                  ? CPU_COUNT(&usable)
                  : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, max_threads);
}

int count_default_threads() {
  const char* text = std::getenv("QUIPU_NUM_THREADS");
  if (text == nullptr || *text == '\0') return count_cores();
  int wanted = -1;
  const char* end = text + std::strlen(text);
  auto [stop, failure] = std::from_chars(text, end, wanted);
  check(failure == std::errc() && stop == end && wanted >= 0 && wanted <= max_threads,
        "QUIPU_NUM_THREADS is \"", text, "\", but must be a whole number from 0 (all cores) to ",
        max_threads);
  return wanted == 0 ? count_cores() : wanted;
}

// The caller holds pool_mutex.
void end_pool() {
  delete pool.exchange(nullptr);
}

// Null when there is no memory even for this.
Workers* make_workers(int wanted) {
  try {
    return new Workers(wanted);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Null when the program is ending.
Workers* running_pool() {
  if (Workers* running = pool.load(std::memory_order_acquire)) return running;
  // Joins the workers when the program ends; statics that are older than the pool then run inline.
  static struct AtExit {
    ~AtExit() {
      std::lock_guard lock(pool_mutex);
      ended = true;
      end_pool();
    }
  } at_exit;
  // A forked child has the caller's thread alone. It begins with a pool of its own; the parent's
  // cannot be joined, and its memory stays.
  [[maybe_unused]] static const int at_fork =
      pthread_atfork([] { pool_mutex.lock(); }, [] { pool_mutex.unlock(); },
                     [] {
                       pool.store(nullptr);
                       pool_mutex.unlock();
                     });
  std::lock_guard lock(pool_mutex);
  if (ended || num_threads() == 1) return nullptr;
  if (pool.load() == nullptr) pool.store(make_workers(num_threads() - 1));
  return pool.load();
}

void run_inline(std::int64_t n, std::int64_t grain, std::int64_t chunks, ChunkFunction f) {
  for (std::int64_t i = 0; i < chunks; ++i) f(i * grain, i == chunks - 1 ? n : (i + 1) * grain);
}

}  // namespace

int num_threads() {
  if (int known = threads.load(std::memory_order_relaxed)) return known;
  int wanted = count_default_threads(), unknown = 0;
  return threads.compare_exchange_strong(unknown, wanted) ? wanted : unknown;
}

int set_num_threads(int wanted) {
  check(wanted >= 0 && wanted <= max_threads,
        "set_num_threads: wanted a number from 0 (all cores) to ", max_threads, ", got ", wanted);
  check(!inside_parallel_for, "set_num_threads: called from inside a parallel_for");
  const int old = num_threads();
  std::lock_guard lock(pool_mutex);
  end_pool();
  threads.store(wanted == 0 ? count_cores() : wanted);
  return old;
}

void detail::run_chunks(std::int64_t n, std::int64_t grain, ChunkFunction f) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(1, grain);
  const std::int64_t chunks = (n - 1) / grain + 1;
  const bool alone = chunks == 1 || inside_parallel_for || num_threads() == 1;
  Workers* const workers = alone ? nullptr : running_pool();
  if (workers == nullptr || workers->count() == 0) return run_inline(n, grain, chunks, f);

  const int tasks = static_cast<int>(std::min<std::int64_t>(workers->count(), chunks - 1));
  Job* const job = Job::make(n, grain, chunks, f, tasks);
  if (job == nullptr) return run_inline(n, grain, chunks, f);
  workers->hand_out(job, tasks);
  job->work(0);
  job->wait();
  const std::exception_ptr exception = job->take_exception();
  job->release();
  if (exception) std::rethrow_exception(exception);
}

}  // namespace quipu
