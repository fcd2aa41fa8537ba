#include "quipu/core/version.h"

#include <string>

#include "support/support.h"

TEST_CASE("version: one number in the headers, in the library and in the package") {
  const std::string in_headers = std::to_string(QUIPU_VERSION_MAJOR) + "." +
                                 std::to_string(QUIPU_VERSION_MINOR) + "." +
                                 std::to_string(QUIPU_VERSION_PATCH);
  CHECK(quipu::version() == in_headers);
  CHECK(in_headers == QUIPU_PACKAGE_VERSION);
}
