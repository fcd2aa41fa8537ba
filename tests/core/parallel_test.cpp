#include "quipu/core/threads/parallel.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "quipu/core/context.h"
#include "quipu/core/error.h"
#include "support/child.h"
#include "support/thread_limit.h"

using namespace quipu;
using namespace quipu::detail;

namespace {

/// Puts the number of threads back when it goes.
class Threads {
 public:
  explicit Threads(int threads) : old_(set_num_threads(threads)) {}
  ~Threads() { set_num_threads(old_); }

 private:
  int old_;
};

std::vector<int> count_visits(std::int64_t n, std::int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  return {visits.begin(), visits.end()};
}

}  // namespace

TEST_CASE("parallel: every index is visited once on any number of threads") {
  for (int threads : {1, 2, 3, 8}) {
    Threads scope(threads);
    CHECK(num_threads() == threads);
    for (std::int64_t n : {0, 1, 2, 7, 64, 1000, 4099}) {
      for (std::int64_t grain : {1, 3, 64, 5000}) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(grain);
        CHECK(count_visits(n, grain) == std::vector<int>(static_cast<std::size_t>(n), 1));
      }
    }
  }
}

TEST_CASE("parallel: chunks begin at multiples of the grain and only the last is shorter") {
  Threads scope(3);
  const std::int64_t n = 1003, grain = 10;
  std::vector<std::int64_t> ends(101, -1);
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    if (begin % grain == 0) ends[static_cast<std::size_t>(begin / grain)] = end;
  });
  for (std::size_t i = 0; i < ends.size(); ++i)
    CHECK(ends[i] == std::min(n, static_cast<std::int64_t>(i + 1) * grain));
}

TEST_CASE("parallel: a huge grain does not overflow, a grain below 1 counts as 1") {
  std::int64_t seen = 0;
  parallel_for(5, std::numeric_limits<std::int64_t>::max(),
               [&](std::int64_t begin, std::int64_t end) { seen += end - begin; });
  CHECK(seen == 5);
  CHECK(count_visits(5, 0) == std::vector<int>(5, 1));
}

TEST_CASE("parallel: a call inside a chunk stays on its thread") {
  Threads scope(4);
  std::atomic<int> strays = 0, visits = 0;
  parallel_for(16, 1, [&](std::int64_t, std::int64_t) {
    const std::thread::id here = std::this_thread::get_id();
    parallel_for(32, 1, [&](std::int64_t, std::int64_t) {
      ++visits;
      strays += std::this_thread::get_id() != here;
    });
  });
  CHECK(visits == 16 * 32);
  CHECK(strays == 0);
}

TEST_CASE("parallel: of all exceptions the one of the first chunk arrives, every time") {
  for (int threads : {1, 2, 4}) {
    Threads scope(threads);
    for (int run = 0; run < 200; ++run) {
      std::string message;
      try {
        parallel_for(100, 1, [&](std::int64_t i, std::int64_t) {
          if (i % 10 == 7) throw Error("chunk " + std::to_string(i));
        });
      } catch (const Error& e) {
        message = e.what();
      }
      CHECK(message == "chunk 7");
    }
    CHECK(count_visits(100, 1) == std::vector<int>(100, 1));  // and the pool still works
  }
}

TEST_CASE("parallel: chunks run under the operator and the scope of the caller") {
  Threads scope(4);
  MemoryScope layer("layer3");
  OpScope op("some_operator");
  const ScopeId wanted = thread_context().scope;
  std::atomic<int> right = 0;
  parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
    const ThreadContext& context = thread_context();
    right += context.op != nullptr && std::string(context.op) == "some_operator" &&
             context.scope == wanted;
  });
  CHECK(right == 64);
}

TEST_CASE("parallel: several user threads at once") {
  Threads scope(3);
  std::atomic<std::int64_t> total = 0;
  {
    std::vector<std::jthread> users;
    for (int user = 0; user < 4; ++user) {
      users.emplace_back([&] {
        for (int run = 0; run < 100; ++run) {
          parallel_for(50, 4, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
        }
      });
    }
  }
  CHECK(total == 4 * 100 * 50);
}

TEST_CASE("parallel: set_num_threads returns the old number and refuses nonsense") {
  Threads scope(2);
  CHECK(set_num_threads(5) == 2);
  CHECK(set_num_threads(0) == 5);
  CHECK(num_threads() >= 1);
  CHECK_THROWS_AS(set_num_threads(-1), Error);
  CHECK_THROWS_AS(set_num_threads(1 << 20), Error);
  set_num_threads(2);
  CHECK_THROWS_AS(parallel_for(4, 1, [](std::int64_t, std::int64_t) { set_num_threads(1); }),
                  Error);
  CHECK(num_threads() == 2);
}

TEST_CASE("parallel: one small job after the other, also while workers lag behind") {
  const int before = num_threads();
  for (const int threads : {2, 3, 4}) {
    set_num_threads(threads);
    std::int64_t wrong = 0;
    for (std::int64_t job = 0; job < 20000; ++job) {
      const std::int64_t n = 1 + job % 37;
      std::vector<std::int64_t> seen(static_cast<std::size_t>(n), 0);
      parallel_for(n, 1 + job % 3, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) seen[static_cast<std::size_t>(i)] += job + i;
      });
      for (std::int64_t i = 0; i < n; ++i) wrong += seen[static_cast<std::size_t>(i)] != job + i;
    }
    CHECK(wrong == 0);
  }
  set_num_threads(before);
}

TEST_CASE("parallel: the pool works with the threads that it gets") {
  for (const int given : {0, 1, 2}) {
    CAPTURE(given);
    {
      const testing::ThreadLimit limit(given);
      Threads scope(4);
      CHECK(count_visits(1000, 3) == std::vector<int>(1000, 1));
      CHECK(limit.refused() > 0);
      CHECK(count_visits(1000, 3) == std::vector<int>(1000, 1));
      CHECK_THROWS_AS(parallel_for(9, 1, [](std::int64_t, std::int64_t) { throw Error("no"); }),
                      Error);
    }
    Threads scope(4);
    CHECK(count_visits(1000, 3) == std::vector<int>(1000, 1));
  }
}

TEST_CASE("parallel: a forked child has a pool of its own, and so has its child") {
  Threads scope(4);
  const auto works = [] { return count_visits(1000, 3) == std::vector<int>(1000, 1); };
  CHECK(works());
  CHECK(testing::in_child([&] { return works() && testing::in_child(works) == "" && works(); }) ==
        "");
  CHECK(testing::in_child([&] { return set_num_threads(2) == 4 && works(); }) == "");
  CHECK(works());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map more themselves
TEST_CASE("parallel: many threads where address space is short") {
  for (const rlim_t room : {16u, 100u, 200u}) {  // MiB; a stack takes 8
    CAPTURE(room);
    CHECK(testing::in_child([&] {
            std::int64_t pages = 0;
            std::ifstream("/proc/self/statm") >> pages;
            const rlim_t mapped = static_cast<rlim_t>(pages) * static_cast<rlim_t>(getpagesize());
            const rlimit limit{mapped + (room << 20), RLIM_INFINITY};
            setrlimit(RLIMIT_AS, &limit);
            set_num_threads(64);
            const bool right = count_visits(1000, 3) == std::vector<int>(1000, 1);
            return right && std::make_unique<char[]>(8 << 20) != nullptr;
          }) == "");
  }
}
#endif
