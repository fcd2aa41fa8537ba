#include "quipu/ops/pointwise/compare.h"

#include "quipu/ops/checks.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

struct WhereRule {
  Saved condition;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(1, [&](const Grad& g) {
      map_into(g, Pointwise::where_first, {condition.get(), d_o}, d_o.shape());
    });
    d.with(2, [&](const Grad& g) {
      map_into(g, Pointwise::where_second, {condition.get(), d_o}, d_o.shape());
    });
  }
};

Tensor predicate(Pointwise f, const Term& a, const Term& b) {
  PointwiseResult result = match_terms(a, b);
  const auto beside = [dtype = result.dtype](const Term& term) {
    return term.is_tensor() ? operand(term) : Operand(in_type(term.scalar(), dtype));
  };
  result.dtype = boolean;
  return no_gradient(map(f, {beside(a), beside(b)}, result));
}

Tensor property(Pointwise f, const Tensor& x) {
  return no_gradient(map(f, {x}, {x.shape(), boolean, x.device()}));
}

Tensor of_bits(Pointwise f, const Term& a, const Term& b) {
  const PointwiseResult result = match_terms(a, b);
  check(!is_floating(result.dtype), "bits are those of whole numbers and bools, but these are ",
        result.dtype);
  return no_gradient(map(f, {operand(a), operand(b)}, result));
}

Tensor shifted(Pointwise f, const Term& a, const Term& b) {
  for (const Term* term : {&a, &b}) {
    const DType type = term->is_tensor() ? term->tensor().dtype() : i64;
    check(is_integral(type), "whole numbers can be shifted, but ", term == &a ? "a" : "b", " is ",
          type);
  }
  return of_bits(f, a, b);
}

Tensor choose(const Tensor& condition, const Term& a, const Term& b, PointwiseResult result) {
  result.shape = broadcast_shapes(condition.shape(), result.shape);
  for (const Term* term : {&a, &b}) {
    if (!term->is_tensor()) check_value(term->scalar(), result.dtype);
  }
  const Tensor o = map(Pointwise::where, {condition, operand(a), operand(b)}, result);
  const bool wanted = a.requires_grad() || b.requires_grad();
  return tie(o, {condition, a.tensor(), b.tensor()}, WhereRule{save_if(wanted, condition)});
}

}  // namespace

Tensor eq(const Term& a, const Term& b) {
  const OpScope op("eq");
  return predicate(Pointwise::eq, a, b);
}

Tensor ne(const Term& a, const Term& b) {
  const OpScope op("ne");
  return predicate(Pointwise::ne, a, b);
}

Tensor lt(const Term& a, const Term& b) {
  const OpScope op("lt");
  return predicate(Pointwise::lt, a, b);
}

Tensor le(const Term& a, const Term& b) {
  const OpScope op("le");
  return predicate(Pointwise::le, a, b);
}

Tensor gt(const Term& a, const Term& b) {
  const OpScope op("gt");
  return predicate(Pointwise::gt, a, b);
}

Tensor ge(const Term& a, const Term& b) {
  const OpScope op("ge");
  return predicate(Pointwise::ge, a, b);
}

Tensor logical_and(const Term& a, const Term& b) {
  const OpScope op("logical_and");
  return predicate(Pointwise::logical_and, a, b);
}

Tensor logical_or(const Term& a, const Term& b) {
  const OpScope op("logical_or");
  return predicate(Pointwise::logical_or, a, b);
}

Tensor logical_xor(const Term& a, const Term& b) {
  const OpScope op("logical_xor");
  return predicate(Pointwise::logical_xor, a, b);
}

Tensor logical_not(const Tensor& x) {
  const OpScope op("logical_not");
  return property(Pointwise::logical_not, x);
}

Tensor isnan(const Tensor& x) {
  const OpScope op("isnan");
  return property(Pointwise::isnan, x);
}

Tensor isinf(const Tensor& x) {
  const OpScope op("isinf");
  return property(Pointwise::isinf, x);
}

Tensor isfinite(const Tensor& x) {
  const OpScope op("isfinite");
  return property(Pointwise::isfinite, x);
}

Tensor bitwise_and(const Term& a, const Term& b) {
  const OpScope op("bitwise_and");
  return of_bits(Pointwise::bit_and, a, b);
}

Tensor bitwise_or(const Term& a, const Term& b) {
  const OpScope op("bitwise_or");
  return of_bits(Pointwise::bit_or, a, b);
}

Tensor bitwise_xor(const Term& a, const Term& b) {
  const OpScope op("bitwise_xor");
  return of_bits(Pointwise::bit_xor, a, b);
}

Tensor bitwise_not(const Tensor& x) {
  const OpScope op("bitwise_not");
  if (x.dtype() == boolean) return property(Pointwise::logical_not, x);
  return of_bits(Pointwise::bit_xor, x, -1);
}

Tensor shift_left(const Term& a, const Term& b) {
  const OpScope op("shift_left");
  return shifted(Pointwise::shift_left, a, b);
}

Tensor shift_right(const Term& a, const Term& b) {
  const OpScope op("shift_right");
  return shifted(Pointwise::shift_right, a, b);
}

Tensor where(const Tensor& condition, const Term& a, const Term& b) {
  const OpScope op("where");
  check_bool("condition", condition);
  if (!a.is_tensor() && !b.is_tensor()) {
    // Two numbers have the type that both would have by themselves.
    const DType type = promote(a.scalar().natural_dtype(), b.scalar().natural_dtype());
    return choose(condition, a, b, {{}, type, condition.device()});
  }
  const PointwiseResult result = match_terms(a, b);
  if (a.is_tensor() && b.is_tensor()) check_same_dtype("a", a.tensor(), "b", b.tensor());
  check_same_device("condition", condition, a.is_tensor() ? "a" : "b",
                    (a.is_tensor() ? a : b).tensor());
  return choose(condition, a, b, result);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  const OpScope op("masked_fill");
  check_bool("mask", mask);
  check_same_device("x", x, "mask", mask);
  check(can_broadcast(mask.shape(), x.shape()), "mask has shape ", mask.shape(),
        ", which does not broadcast to the shape ", x.shape(), " of x");
  return choose(mask, value, x, {x.shape(), x.dtype(), x.device()});
}

}  // namespace quipu
