// What the processor has, asked of itself, and the level that follows from it.
#include "quipu/core/dispatch/cpu_levels.h"

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quipu/core/devices.h"
#include "quipu/core/error.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quipu {
using namespace detail;
namespace {

#if defined(__x86_64__)

/// What one call of CPUID answers; zeros where the processor does not know the question.
struct CpuId {
  unsigned a = 0, b = 0, c = 0, d = 0;
  CpuId(unsigned leaf, unsigned subleaf) {
    if (__get_cpuid_count(leaf, subleaf, &a, &b, &c, &d) == 0) *this = CpuId();
  }

 private:
  CpuId() = default;
};

constexpr bool all_of(unsigned word, std::initializer_list<int> bits) {
  for (const int bit : bits) {
    if ((word >> bit & 1u) == 0) return false;
  }
  return true;
}

/// Whether the system saves the registers whose bits are in `mask` when it changes threads.
bool system_saves(unsigned mask) {
  if (!all_of(CpuId(1, 0).c, {27})) return false;  // OSXSAVE
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask;
}

// The levels of the x86-64 psABI. Bits are in the order of its list of instructions.
bool has_v2() {
  return all_of(CpuId(1, 0).c, {0, 9, 13, 19, 20, 23}) && all_of(CpuId(0x80000001, 0).c, {0});
}
bool has_v3() {
  constexpr unsigned sse_and_avx = 0x6;
  return has_v2() && system_saves(sse_and_avx) && all_of(CpuId(1, 0).c, {12, 22, 28, 29}) &&
         all_of(CpuId(7, 0).b, {3, 5, 8}) && all_of(CpuId(0x80000001, 0).c, {5});
}
bool has_v4() {
  constexpr unsigned masks_and_zmm = 0xe0;
  return has_v3() && system_saves(masks_and_zmm) && all_of(CpuId(7, 0).b, {16, 17, 28, 30, 31});
}
bool has_v4_bf16() {
  return has_v4() && CpuId(7, 0).a >= 1 && all_of(CpuId(7, 1).a, {5});
}

#endif

/// Names, with what keeps this machine from some of them.
std::string list_of_levels() {
  std::string list;
  for (const CpuLevel& level : cpu_levels()) {
    list += concat(list.empty() ? "" : ", ", level.name,
                   processor_has(level.name) ? "" : " (not on this processor)");
  }
  return list;
}

const CpuLevel& choose_level() {
  const char* const wanted = std::getenv("QUIPU_CPU");
  const bool any = wanted == nullptr || *wanted == '\0';
  const CpuLevel* chosen = nullptr;
  for (const CpuLevel& level : cpu_levels()) {
    if (processor_has(level.name) && (any || std::string_view(wanted) == level.name)) {
      chosen = &level;
    }
  }
  check(chosen != nullptr || !any,
        "this processor runs none of the levels of this build: ", list_of_levels(),
        "; build with another QUIPU_CPU_LEVELS");
  check(chosen != nullptr, "QUIPU_CPU is \"", any ? "" : wanted,
        "\", but this build and processor have ", list_of_levels());
  return *chosen;
}

}  // namespace

bool detail::processor_has([[maybe_unused]] const char* level) {
#if defined(__x86_64__)
  const std::string_view name = level;
  if (name == "v2") return has_v2();
  if (name == "v3") return has_v3();
  if (name == "v4") return has_v4();
  if (name == "v4_bf16") return has_v4_bf16();
#endif
  return true;  // native and baseline were chosen where the library was built
}

const CpuLevel& detail::chosen_cpu_level() {
  static const CpuLevel& chosen = choose_level();
  return chosen;
}

const char* cpu_level() {
  return chosen_cpu_level().name;
}

}  // namespace quipu
