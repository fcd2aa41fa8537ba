#pragma once
// The levels of instructions that cpu/ was compiled for. Internal to the library.
#include <span>

namespace quipu::detail {

/// The kernels of cpu/, compiled for one set of instructions. Nothing of it may run before
/// processor_has(name).
struct CpuLevel {
  const char* name;
  void (*provide_kernels)();
};

/// Those of this build, the best one last; generated (cmake/levels.cmake).
std::span<const CpuLevel> cpu_levels();

/// Whether this machine runs the instructions of a level.
bool processor_has(const char* level);

/// The one that this program runs.
const CpuLevel& chosen_cpu_level();

}  // namespace quipu::detail
