#pragma once
// The thread pool. Work is cut into chunks by size alone, never by the number of threads, so that
// results are the same bits on one thread and on many. Where the system gives fewer threads than
// wanted, or none, work is done by those that there are; a forked child has a pool of its own.
#include <cstdint>
#include <type_traits>

namespace quipu {

/// Threads that one parallel_for uses, the caller included; all cores unless set.
int num_threads();
/// Returns the old number; 0 asks for all cores. Also QUIPU_NUM_THREADS. Call it while no operator
/// runs.
int set_num_threads(int threads);

namespace detail {

/// A reference to a callable, without allocation.
class ChunkFunction {
 public:
  template <class F>
  requires(!std::is_same_v<F, ChunkFunction>)  // a copy must not refer to the original
      ChunkFunction(F& f)
      : object_(&f),
        call_([](void* o, std::int64_t b, std::int64_t e) { (*static_cast<F*>(o))(b, e); }) {}
  void operator()(std::int64_t begin, std::int64_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, std::int64_t);
};

void run_chunks(std::int64_t n, std::int64_t grain, ChunkFunction f);

}  // namespace detail

/// Calls f(begin, end) for consecutive chunks of `grain` (the last may be shorter) that cover [0,
/// n), in parallel. Inside another parallel_for it runs inline. An exception is passed on to the
/// caller.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  detail::run_chunks(n, grain, detail::ChunkFunction(f));
}

}  // namespace quipu
