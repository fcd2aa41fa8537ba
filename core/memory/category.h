#pragma once
// What memory is held for.
#include <array>
#include <cstddef>
#include <cstdint>

namespace quipu {

/// Every block belongs to one; it moves from output or workspace to saved while a tape keeps it.
enum class Category : std::uint8_t {
  parameter,  // leaves that require a gradient
  gradient,   // of parameters, and of intermediate results during backward
  optimizer,  // moments, f32 master copies, loss scale
  saved,      // kept by a tape for backward
  output,     // results of operators and whatever else the user holds
  workspace   // scratch memory of one operator
};
/// Number of categories, for arrays indexed by them.
inline constexpr int category_count = 6;
/// The enumerator's name, as reports print it.
const char* name_of(Category category);

/// Bytes of each category.
using CategoryBytes = std::array<std::size_t, category_count>;

}  // namespace quipu
