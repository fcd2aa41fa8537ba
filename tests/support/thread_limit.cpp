// The program's own pthread_create goes before that of the C library, for std::thread, too.
#include "thread_limit.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <limits>

namespace {

constexpr int no_limit = std::numeric_limits<int>::max();
std::atomic<int> left{no_limit}, refused_count{0};

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (left.load() != no_limit && left.fetch_sub(1) <= 0) {
    ++refused_count;
    return EAGAIN;
  }
  return create(thread, attributes, run, argument);
}

namespace quipu::testing {

ThreadLimit::ThreadLimit(int threads) {
  refused_count = 0;
  left = threads;
}

ThreadLimit::~ThreadLimit() {
  left = no_limit;
}

int ThreadLimit::refused() const {
  return refused_count;
}

}  // namespace quipu::testing
