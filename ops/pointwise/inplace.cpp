// Changes in place. Nothing is recorded; what a tape has recorded or still needs is protected by
// versions.
#include <utility>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/kernels.h"

namespace quipu {
using namespace detail;
namespace {

/// bool, whole or floating: a change in place must not need a higher one than the tensor has.
int rank_of(DType t) {
  return is_floating(t) ? 2 : is_integral(t) ? 1 : 0;
}

void check_target(const Tensor& x) {
  for (int d = 0; d < x.dim(); ++d) {
    check(x.strides()[d] != 0 || x.size(d) <= 1, "the tensor is expanded along dimension ", d,
          ", so several of its elements are one in memory; clone() it first");
  }
}

/// The first and one past the last element of its storage that a tensor reaches.
std::pair<std::int64_t, std::int64_t> extent(const Tensor& x) {
  std::int64_t low = x.offset(), high = low + 1;
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t reach = (x.size(d) - 1) * x.strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  return {low, high};
}

/// Whether writing to `target` element by element could change a value of `source` before it is
/// read.
bool disturbs(const Tensor& target, const Tensor& source) {
  if (&target.storage() != &source.storage() || target.numel() == 0) return false;
  if (target.dtype() != source.dtype()) return true;
  const Strides strides = broadcast_strides(source.shape(), source.strides(), target.shape());
  if (target.offset() == source.offset() && strides == target.strides())
    return false;  // each element meets itself
  const auto [low, high] = extent(target);
  const auto [source_low, source_high] = extent(source);
  return low < source_high && source_low < high;
}

/// `source` after all checks, or a copy of it where the two overlap.
Tensor prepared(const Tensor& target, const char* name, const Tensor& source) {
  check(can_broadcast(source.shape(), target.shape()), name, " has shape ", source.shape(),
        ", which does not broadcast to the shape ", target.shape(),
        " of the tensor that is changed");
  check(!(detail::taping() && source.requires_grad()), name,
        " wants a gradient, but changes in place are not recorded; use the operator that returns a "
        "new tensor, or "
        "detach() it");
  if (!disturbs(target, source)) return source;
  const Tensor copy = workspace(source.shape(), source.dtype(), source.device());
  copy_kernel(copy, source);
  return copy;
}

/// As prepared, for arithmetic: on the same device, and of a type that the target can take.
Tensor prepared_operand(const Tensor& target, const char* name, const Tensor& source) {
  check_same_device("the tensor that is changed", target, name, source);
  check(rank_of(source.dtype()) <= rank_of(target.dtype()), name, " is ", source.dtype(),
        ", but the tensor that is changed is ", target.dtype(), " and keeps its type; convert ",
        name, " with .to(", target.dtype(), ")");
  return prepared(target, name, source);
}

/// As prepared_operand, where the product is computed without the target: in a floating type if
/// that is one.
Tensor prepared_factor(const Tensor& target, const char* name, const Tensor& source) {
  if (is_floating(target.dtype())) check_floating(name, source.dtype());
  return prepared_operand(target, name, source);
}

/// target = f(in), after the checks of the target.
const Tensor& change(const Tensor& target, Pointwise f, const Operands& in) {
  change_in_place(target);
  pointwise_kernel(Grad::write_to(target), f, in);
  return target;
}

}  // namespace

const Tensor& Tensor::copy_from(const Tensor& source) const {
  const OpScope op("copy_from");
  check_target(*this);
  Tensor here = prepared(*this, "source", source);
  if (here.device() != device()) {
    const NoGrad pause;
    here = here.to(device());
  }
  change_in_place(*this);
  View from = here;
  from.strides = broadcast_strides(from.shape, from.strides, shape());
  from.shape = shape();
  copy_kernel(*this, from);
  return *this;
}

const Tensor& Tensor::fill_(const Scalar& value) const {
  const OpScope op("fill_");
  check_target(*this);
  check_value(value, dtype());
  change_in_place(*this);
  fill_kernel(*this, value);
  return *this;
}

const Tensor& Tensor::add_(const Tensor& other, const Scalar& scale) const {
  const OpScope op("add_");
  check_target(*this);
  check_scalar(scale, dtype());
  return change(*this, Pointwise::fma, {*this, prepared_operand(*this, "other", other), scale});
}

const Tensor& Tensor::add_(const Scalar& value) const {
  const OpScope op("add_");
  check_target(*this);
  check_scalar(value, dtype());
  return change(*this, Pointwise::add, {*this, value});
}

const Tensor& Tensor::mul_(const Tensor& other) const {
  const OpScope op("mul_");
  check_target(*this);
  return change(*this, Pointwise::mul, {*this, prepared_operand(*this, "other", other)});
}

const Tensor& Tensor::mul_(const Scalar& value) const {
  const OpScope op("mul_");
  check_target(*this);
  check_scalar(value, dtype());
  return change(*this, Pointwise::mul, {*this, value});
}

const Tensor& Tensor::div_(const Tensor& other) const {
  const OpScope op("div_");
  check_target(*this);
  check_floating("the tensor that is changed", dtype());
  return change(*this, Pointwise::div, {*this, prepared_operand(*this, "other", other)});
}

const Tensor& Tensor::clamp_(const Scalar& low, const Scalar& high) const {
  const OpScope op("clamp_");
  check_target(*this);
  check(low.real() <= high.real(), "low is ", low, ", but high is ", high);
  const Scalar from = lower_bound_in(low, dtype()), to = upper_bound_in(high, dtype());
  return change(*this, Pointwise::clamp, {*this, from, to});
}

const Tensor& Tensor::lerp_(const Tensor& end, const Scalar& weight) const {
  const OpScope op("lerp_");
  check_target(*this);
  check_floating("the tensor that is changed", dtype());
  const Tensor to = prepared_operand(*this, "end", end);
  change_in_place(*this);
  pointwise_kernel(Grad::add_to(*this), Pointwise::mul_difference, {weight, to, *this});
  return *this;
}

const Tensor& Tensor::addcmul_(const Tensor& a, const Tensor& b, const Scalar& scale) const {
  const OpScope op("addcmul_");
  check_target(*this);
  check_scalar(scale, dtype());
  const Tensor x = prepared_factor(*this, "a", a), y = prepared_factor(*this, "b", b);
  change_in_place(*this);
  pointwise_kernel(Grad::add_to(*this), Pointwise::mul_mul, {x, y, scale});
  return *this;
}

const Tensor& Tensor::addcdiv_(const Tensor& a, const Tensor& b, const Scalar& scale) const {
  const OpScope op("addcdiv_");
  check_target(*this);
  check_floating("the tensor that is changed", dtype());
  const Tensor x = prepared_factor(*this, "a", a), y = prepared_factor(*this, "b", b);
  change_in_place(*this);
  pointwise_kernel(Grad::add_to(*this), Pointwise::mul_div, {scale, x, y});
  return *this;
}

}  // namespace quipu
