#pragma once
// What operators and their backward rules share, above all the pointwise ones. Internal to ops/.
#include <optional>

#include "quipu/autograd/knot.h"
#include "quipu/ops/pointwise/kernels.h"
#include "quipu/ops/pointwise/term.h"

namespace quipu::detail {

/// What `f(a, b)` will be: both sides on one device, their types promoted, their shapes broadcast.
struct PointwiseResult {
  Shape shape;
  DType dtype;
  Device device;
};
/// Throws where the two sides do not go together; a number must fit the tensor beside it.
PointwiseResult match_terms(const Term& a, const Term& b);

inline Operand operand(const Term& term) {
  return term.is_tensor() ? Operand(term.tensor()) : Operand(term.scalar());
}

/// A new tensor of f(in).
Tensor map(Pointwise f, const Operands& in, const PointwiseResult& result);

/// g (=|+=) f(in), where f runs over the shape `over`; summed over what g was broadcast along.
void map_into(const Grad& g, Pointwise f, const Operands& in, const Shape& over);

enum class Keep { input, output };
/// f(x) or f(x, parameter), in the type of x, which must be floating. Its gradient is `gradient` of
/// d_o, what is kept, and the parameter.
Tensor unary(Pointwise f, const Tensor& x, Keep keep, Pointwise gradient,
             const std::optional<Scalar>& parameter = {});

/// x itself if it is contiguous, else a copy that is, in workspace.
Tensor dense(const Tensor& x);

/// Keeps x for backward only where it is wanted.
inline Saved save_if(bool wanted, const Tensor& x) {
  return wanted ? save(x) : Saved();
}

/// A term kept for backward: numbers always, tensors where they are wanted.
class SavedTerm {
 public:
  SavedTerm(bool wanted, const Term& term)
      : tensor_(save_if(wanted && term.is_tensor(), term.tensor())),
        scalar_(term.scalar()),
        is_tensor_(term.is_tensor()) {}
  operator Operand() const { return is_tensor_ ? Operand(tensor_.get()) : Operand(scalar_); }

 private:
  Saved tensor_;
  Scalar scalar_;
  bool is_tensor_;
};

}  // namespace quipu::detail
