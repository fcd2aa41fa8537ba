// cpu-levels LEVEL COMMAND...: runs the command with QUIPU_CPU=LEVEL, or says that this processor
// lacks it, with status 77. Without arguments it prints the levels of the build, in order, and the
// one that programs take.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "quipu/core/devices.h"
#include "quipu/core/dispatch/cpu_levels.h"
#include "quipu/core/error.h"

int main(int argc, char** argv) try {
  using namespace quipu::detail;
  if (argc < 3) {
    for (const CpuLevel& level : cpu_levels()) {
      std::printf("%s%s\n", level.name, processor_has(level.name) ? "" : " (not here)");
    }
    std::printf("taken: %s\n", quipu::cpu_level());
    return EXIT_SUCCESS;
  }
  const char* const wanted = argv[1];
  for (const CpuLevel& level : cpu_levels()) {
    if (std::strcmp(level.name, wanted) != 0) continue;
    if (!processor_has(wanted)) {
      std::printf("skipped: this processor lacks %s\n", wanted);
      return 77;
    }
    setenv("QUIPU_CPU", wanted, 1);  // NOLINT: there are no other threads
    execv(argv[2], argv + 2);
    std::perror(argv[2]);
    return EXIT_FAILURE;
  }
  std::printf("this build has no level %s\n", wanted);
  return EXIT_FAILURE;
} catch (const quipu::Error& error) {
  std::puts(error.what());
  return EXIT_FAILURE;
}
