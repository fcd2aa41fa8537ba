// Runs many random programs, several processes side by side. A program that fails is shrunk and
// printed as C++; one that ends its process is named.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>
#include <thread>

#include "program.h"

using namespace quipu;

namespace {

struct Options {
  std::uint64_t programs = 1, seed = 1;
  unsigned jobs = 1;
  std::string device = "cpu";
  bool print = false, failures_only = false;
};

/// What a process says of itself, in memory that all see.
struct Progress {
  std::uint64_t seed = 0;
  int failed = 0;
  programs::Tally tally;
};

void run_part(const Options& options, unsigned part, Progress& progress) {
  for (std::uint64_t k = part; k < options.programs; k += options.jobs) {
    progress.seed = options.seed + k;
    if (options.print) std::cout << programs::to_cpp(programs::draw_program(progress.seed));
    if (options.failures_only) {
      const auto failure =
          programs::check(programs::draw_program(progress.seed), options.device, progress.tally);
      if (!failure) continue;
      std::cout << "program " << progress.seed << ": " << failure->kind << ": " << failure->text
                << std::endl;
      ++progress.failed;
    } else if (const auto report =
                   programs::try_program(progress.seed, options.device, progress.tally)) {
      std::cout << *report << std::endl;
      ++progress.failed;
      return;
    }
  }
}

/// How its process ended, unless it did so by itself.
bool ended_well(int status, std::uint64_t seed) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::cout << "program " << seed << " ended its process: "
            << (WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "an exit") << "\n";
  return false;
}

int run_all(const Options& options) {
  void* shared = mmap(nullptr, options.jobs * sizeof(Progress), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  auto* const progress = static_cast<Progress*>(shared);
  std::vector<pid_t> processes;
  for (unsigned k = 0; k < options.jobs; ++k) {
    new (&progress[k]) Progress;
    const pid_t child = fork();
    if (child == 0) {
      run_part(options, k, progress[k]);
      std::cout.flush();
      std::exit(0);
    }
    processes.push_back(child);
  }
  programs::Tally sum;
  int failed = 0;
  for (unsigned k = 0; k < options.jobs; ++k) {
    int status = 0;
    waitpid(processes[k], &status, 0);
    failed += progress[k].failed + !ended_well(status, progress[k].seed);
    const programs::Tally& part = progress[k].tally;
    sum.programs += part.programs;
    sum.walks += part.walks;
    sum.refused += part.refused;
    sum.overflowed += part.overflowed;
    sum.differences += part.differences;
  }
  std::cout << sum.programs << " programs from " << options.seed << " on, " << sum.walks
            << " walks, " << sum.refused << " refused, " << sum.overflowed << " beyond their type, "
            << sum.differences << " against differences, " << failed << " failed\n";
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.jobs = std::max(1u, std::thread::hardware_concurrency());
  CLI::App app("Runs random programs on the tape and on a second, naive one.");
  app.add_option("--programs", options.programs, "how many")->capture_default_str();
  app.add_option("--seed", options.seed, "of the first; alone: runs that one")
      ->capture_default_str();
  app.add_option("--jobs", options.jobs, "processes")->capture_default_str();
  app.add_option("--device", options.device, "cpu or cuda")->capture_default_str();
  app.add_flag("--print", options.print, "each program as C++");
  app.add_flag("--no-shrink", options.failures_only, "all failures, one line each");
  CLI11_PARSE(app, argc, argv);
  options.jobs =
      static_cast<unsigned>(std::clamp<std::uint64_t>(options.programs, 1, options.jobs));
  setenv("QUIPU_NUM_THREADS", "1", 0);  // the processes share the cores
  return run_all(options);
}
