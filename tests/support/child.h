#pragma once
// What a forked child does, as seen from the parent.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>

namespace quipu::testing {

/// Runs f in a forked child: "" if it returned true there, or else how the child ended. One that
/// hangs is killed after 20 seconds.
template <class F>
std::string in_child(F&& f) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    ::alarm(20);
    try {
      ::_exit(f() ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in a child: %s\n", error.what());
    }
    ::_exit(2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return status == 0 ? "" : "ended with status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace quipu::testing
