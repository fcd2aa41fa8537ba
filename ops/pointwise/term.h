#pragma once
// Part of arithmetic.h and compare.h: one side of a pointwise operator, a tensor or a number.
#include <type_traits>

#include "quipu/core/scalar.h"
#include "quipu/core/tensor.h"

namespace quipu::detail {

/// A number takes the type of the tensor beside it and never changes it.
class Term {
 public:
  Term(const Tensor& tensor) : tensor_(tensor), is_tensor_(true) {}
  Term(const Scalar& scalar) : scalar_(scalar) {}
  template <class T>
  requires std::is_arithmetic_v<T> Term(T number) : scalar_(number) {}

  bool is_tensor() const { return is_tensor_; }
  /// Undefined for a number.
  const Tensor& tensor() const { return tensor_; }
  const Scalar& scalar() const { return scalar_; }
  bool requires_grad() const { return tensor_.requires_grad(); }

 private:
  Tensor tensor_;
  Scalar scalar_ = 0;
  bool is_tensor_ = false;
};

}  // namespace quipu::detail
