// A test case that leaks: the run must fail and name it.
#include <doctest/doctest.h>

#include "quipu/core/tensor.h"

// Reachable to the end, so that a leak sanitizer sees nothing wrong and only our own check can.
static quipu::Tensor* kept = nullptr;

TEST_CASE("leak control: keeps a tensor") {
  kept = new quipu::Tensor(quipu::empty({100}));
}
