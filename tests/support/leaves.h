#pragma once
// What the tests of the tape share: small leaves, and values to compare with.
#include <initializer_list>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::testing {

using Values = std::vector<double>;

inline Tensor leaf(std::initializer_list<double> values, const Shape& shape) {
  return from(values, shape).set_requires_grad();
}
inline Tensor leaf(std::initializer_list<double> values) {
  return leaf(values, {static_cast<std::int64_t>(values.size())});
}
inline Values values(const Tensor& x) {
  return x.to_vector();
}

}  // namespace quipu::testing
