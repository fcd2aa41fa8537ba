#include "quipu/core/version.h"

#define QUIPU_TEXT_OF(number) #number
#define QUIPU_VERSION_TEXT(major, minor, patch) \
  QUIPU_TEXT_OF(major) "." QUIPU_TEXT_OF(minor) "." QUIPU_TEXT_OF(patch)

namespace quipu {

const char* version() {
  return QUIPU_VERSION_TEXT(QUIPU_VERSION_MAJOR, QUIPU_VERSION_MINOR, QUIPU_VERSION_PATCH);
}

}  // namespace quipu
