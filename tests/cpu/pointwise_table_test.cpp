// The table of pointwise functions and the loops behind it agree.
#include <doctest/doctest.h>
#include "quipu/cpu/pointwise/functions.h"

using namespace quipu;
using namespace quipu::detail;

TEST_CASE("pointwise: every function of the table has its loops, and only those") {
  CHECK(pointwise_count > 60);
  for (int i = 0; i < pointwise_count; ++i) {
    const auto f = static_cast<Pointwise>(i);
    CAPTURE(traits_of(f).name);
    CHECK((on_cpu::pointwise_function<float>(f) != nullptr) == traits_of(f).for_real);
    CHECK((on_cpu::pointwise_function<double>(f) != nullptr) == traits_of(f).for_real);
    CHECK((on_cpu::pointwise_function<std::int64_t>(f) != nullptr) ==
          traits_of(f).for_whole_numbers);
  }
}
