#pragma once
// What the timeline and the tables of a memory page share. Internal to core/.
#include "quipu/core/report/memory_report.h"

namespace quipu::detail::memory_page {

/// From the bottom of the stack to its top: what stays first, what comes and goes last.
inline constexpr Category stack[] = {Category::parameter, Category::optimizer, Category::gradient,
                                     Category::saved,     Category::output,    Category::workspace};

constexpr const char* meaning_of(Category category) {
  constexpr const char* meanings[] = {"parameters",         "gradients", "optimizer state",
                                      "saved for backward", "outputs",   "workspace"};
  return meanings[static_cast<int>(category)];
}

inline std::size_t sum_of(const CategoryBytes& bytes) {
  std::size_t sum = 0;
  for (const std::size_t b : bytes) sum += b;
  return sum;
}

/// In percent.
inline double share(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

/// Of everything inside an element of class `quipu-memory`.
extern const char* const style;

/// The colours of the categories, and what each of them holds.
std::string legend(const CategoryBytes& bytes);

}  // namespace quipu::detail::memory_page
