// Ctrl-C and other signals that ask a run to stop.
#include <quipu/quipu.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/child.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::nn;

TEST_CASE("interrupt: the first Ctrl-C is a wish, the second ends the program") {
  CHECK_FALSE(stop_requested());
  {
    const StopOnInterrupt guard;
    CHECK_FALSE(stop_requested());
    std::raise(SIGINT);
    CHECK(stop_requested());
    const StopOnInterrupt inner;
    CHECK(stop_requested());
  }
  CHECK(stop_requested());
  const StopOnInterrupt again;
  CHECK_FALSE(stop_requested());

  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    std::raise(SIGINT);
    std::raise(SIGINT);
    _exit(7);  // not reached
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("interrupt: SIGTERM and SIGHUP are wishes, too, and nohup is respected") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    {
      const StopOnInterrupt guard;
      CHECK(stop_signal() == 0);
      std::raise(signal);
      CHECK(stop_requested());
      CHECK(stop_signal() == signal);
    }
  }
  // What comes then; a terminal that closes sends SIGHUP again and again.
  const auto after = [](int first, int second) {
    return testing::in_child([&] {
      const StopOnInterrupt guard;
      close(STDERR_FILENO);
      std::raise(first);
      std::raise(second);
      return stop_signal() == first;
    });
  };
  CHECK(after(SIGINT, SIGINT) == "ended by signal " + std::to_string(SIGINT));
  CHECK(after(SIGTERM, SIGTERM) == "ended by signal " + std::to_string(SIGTERM));
  CHECK(after(SIGHUP, SIGHUP) == "");
  CHECK(after(SIGHUP, SIGTERM) == "");
  CHECK(after(SIGTERM, SIGHUP) == "");
  CHECK(testing::in_child([] {
          std::signal(SIGHUP, SIG_IGN);
          const StopOnInterrupt guard;
          std::raise(SIGHUP);
          return !stop_requested();
        }) == "");
  const StopOnInterrupt reset;
}
