#pragma once
// One side of a pointwise operator: a tensor or a number.
#include <type_traits>

#include "quipu/core/scalar.h"
#include "quipu/core/tensor.h"

namespace quipu {

/// A number takes the type of the tensor beside it and never changes it.
class Term {
 public:
  Term(const Tensor& tensor) : tensor_(tensor) { static_cast<void>(tensor.shape()); }  // throws if undefined
  Term(const Scalar& scalar) : scalar_(scalar) {}
  template <class T>
  requires std::is_arithmetic_v<T> Term(T number) : scalar_(number) {}

  bool is_tensor() const { return tensor_.defined(); }
  /// Undefined for a number.
  const Tensor& tensor() const { return tensor_; }
  const Scalar& scalar() const { return scalar_; }
  bool requires_grad() const { return is_tensor() && tensor_.requires_grad(); }

 private:
  Tensor tensor_;
  Scalar scalar_ = 0;
};

}  // namespace quipu
