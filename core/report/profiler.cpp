// Operators and scopes as ranges of NVTX, which Nsight Systems and Nsight Compute show beside the
// kernels. NVTX consists of headers; a profiler tells it by an environment variable which library
// to load. Without its headers, or without a profiler, operators cost what they did.
#include <cstdlib>
#include <cstring>

#include "quipu/core/context.h"
#ifdef QUIPU_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace quipu {
namespace {

/// QUIPU_NVTX=1 and 0 have the last word.
[[maybe_unused]] bool is_attached() {
  if (const char* wish = std::getenv("QUIPU_NVTX")) return std::strcmp(wish, "0") != 0;
  return std::getenv("NVTX_INJECTION64_PATH") || std::getenv("NSYS_PROFILING_SESSION_ID");
}

}  // namespace

#ifdef QUIPU_NVTX
const bool detail::profiler_listens = is_attached();

void detail::begin_range(const char* name) noexcept {
  nvtxRangePushA(name);
}
void detail::end_range() noexcept {
  nvtxRangePop();
}
#else
const bool detail::profiler_listens = false;

void detail::begin_range(const char*) noexcept {}
void detail::end_range() noexcept {}
#endif

}  // namespace quipu
