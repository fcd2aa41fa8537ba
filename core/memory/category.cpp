#include "quipu/core/memory/category.h"

namespace quipu {

const char* name_of(Category category) {
  constexpr const char* names[] = {"parameter", "gradient", "optimizer",
                                   "saved",     "output",   "workspace"};
  return category <= Category::workspace ? names[static_cast<int>(category)] : "no category";
}

}  // namespace quipu
