#pragma once
// What a back end provides for every pointwise operator and its backward: one map and one
// map-and-sum, over operands that are views or scalars.
#include <array>
#include <initializer_list>
#include <type_traits>

#include "quipu/core/dispatch.h"
#include "quipu/core/scalar.h"
#include "quipu/core/tensor.h"

namespace quipu {

/// The function applied to each element: a, b, c are the operands in order. Computed in f64 if an
/// operand is f64, in f32 if one is another floating type, else in i64 (where only those marked *
/// exist).
enum class Pointwise : std::uint8_t {
  copy,  // * a
  neg,   // * -a
  exp,
  log,
  sqrt,
  rsqrt,
  tanh,
  sin,
  cos,
  abs,          // * |a|
  sign,         // * -1, 0 or 1; NaN stays NaN
  reciprocal,   // 1 / a
  relu,         // a where a > 0, else 0; NaN stays NaN
  sigmoid,      // 1 / (1 + e^-a)
  silu,         // a sigmoid(a)
  normal_cdf,   // Phi(a), how much of the normal distribution lies below a
  gelu,         // a Phi(a)
  logical_not,  // * a == 0
  add,          // * a + b
  sub,          // * a - b
  mul,          // * a * b
  div,          // a / b
  pow,          // a ^ b
  maximum,      // * NaN wins
  minimum,      // * NaN wins
  eq,
  ne,
  lt,
  le,
  gt,
  ge,  // * 1 or 0
  logical_and,
  logical_or,  // * 1 or 0
  where,       // * a ? b : c
  clamp,       // * min(max(a, b), c); NaN stays NaN
  fma,         // * a + b * c
  mul_silu,    // a silu(b)
  // For backward; d is the upstream gradient.
  square_difference,   // (a - b)^2
  exp_difference,      // exp(a - b); 0 where a is -infinity
  mul_exp_difference,  // a * exp(b - c); 0 where b is -infinity
  mul_neg,             // -a * b
  sqrt_grad,           // d=a, o=b: a / (2 b)
  rsqrt_grad,          // d=a, o=b: -a b^3 / 2
  tanh_grad,           // d=a, o=b: a (1 - b^2)
  sin_grad,            // d=a, x=b: a cos b
  cos_grad,            // d=a, x=b: -a sin b
  abs_grad,            // d=a, x=b: a sign b
  relu_grad,           // d=a, x=b: a unless b <= 0
  sigmoid_grad,        // d=a, x=b: a s (1 - s) with s = sigmoid(b)
  silu_grad,           // d=a, x=b: a s (1 + b (1 - s))
  normal_cdf_grad,     // d=a, x=b: a phi(b), the density
  gelu_grad,           // d=a, x=b: a (Phi(b) + b phi(b))
  mul_silu_grad,       // d=a, x=b, y=c: what y silu(x) passes to x: a c s (1 + b (1 - s))
  div_grad_b,          // d=a, o=b, y=c: -a b / c
  pow_grad_a,          // d=a, x=b, y=c: a c b^(c-1); 0 where c is 0
  pow_grad_b,          // d=a, x=b, o=c: a c log b; 0 where b is 0 and c is finite
  where_first,         // condition=a, d=b: a ? b : 0
  where_second,        // condition=a, d=b: a ? 0 : b
  maximum_grad,     // d=a, x=b, y=c: what max(b, c) passes to b: all where b > c or b alone is NaN,
                    // half where equal or both are NaN
  minimum_grad,     // likewise for min
  clamp_grad_low,   // d=a, x=b, low=c: a unless b < c
  clamp_grad_high,  // d=a, x=b, high=c: a unless b > c
  mul_difference,   // a * (b - c)
  mul_mul,          // * a * b * c
  mul_div,          // a * b / c
};

/// Those that also come in sums: what reductions and broadcast operands need.
constexpr bool is_summed(Pointwise f) {
  using enum Pointwise;
  constexpr Pointwise all[] = {
      copy,           neg,          mul,         div,        square_difference,
      exp_difference, div_grad_b,   pow_grad_a,  pow_grad_b, where_first,
      where_second,   maximum_grad, minimum_grad};
  for (const Pointwise summed : all) {
    if (f == summed) return true;
  }
  return false;
}

/// A view or a scalar.
struct Operand {
  Operand(const View& v) : view(v) {}
  Operand(const Tensor& t) : view(t.view()) {}
  Operand(const Scalar& s) : value(s), is_scalar(true) {}
  Operand(double v) : Operand(Scalar(v)) {}
  View view;
  Scalar value = 0;
  bool is_scalar = false;
};

/// Up to three operands, given with the shape that the function runs over (views are broadcast to
/// it).
struct Operands {
  Operands(std::initializer_list<Operand> list) {
    for (const Operand& o : list) items[static_cast<std::size_t>(count++)] = o;
  }
  const View* first_view() const {
    for (int i = 0; i < count; ++i) {
      if (!items[static_cast<std::size_t>(i)].is_scalar)
        return &items[static_cast<std::size_t>(i)].view;
    }
    return nullptr;
  }
  const Operand& operator[](int i) const { return items[static_cast<std::size_t>(i)]; }
  std::array<Operand, 3> items{Operand(0.0), Operand(0.0), Operand(0.0)};
  int count = 0;
};

/// o = f(operands) or o += f(operands), rounded once to the type of o. View operands broadcast to
/// the shape of o.
inline constinit Kernel<void(Grad o, Pointwise f, const Operands& in)> pointwise_kernel{
    "pointwise"};

/// o (=|+=) scale * sum of f(operands), of which is_summed(f), over `over`, which is the operands'
/// broadcast shape; o broadcasts to it, and the dimensions that o lacks or has with size 1 are
/// summed. Sums are f64 inside, whole numbers i64.
inline constinit Kernel<void(Grad o, Pointwise f, const Operands& in, const Shape& over,
                             double scale)>
    pointwise_sum_kernel{"pointwise_sum"};

// ---- for back ends ----

/// The type that a function of these operands is computed in: f64 if an operand is f64, f32 if one
/// is another floating type, else i64. Scalars only count if they have a fraction that i64 would
/// lose.
DType pointwise_type(const Operands& in);
/// The same for a map to `o`: a plain copy of small whole numbers to a floating type goes through
/// f64, which holds them all.
DType pointwise_type(const View& o, Pointwise f, const Operands& in);

/// The strides of the output and of three operands, broadcast to `over`; 0 for scalars and for
/// operands that are not there.
std::array<Strides, 4> pointwise_strides(const View& o, const Operands& in, const Shape& over);

template <class T>
T scalar_as(const Scalar& s) {
  if constexpr (std::is_integral_v<T>) {
    return s.whole();
  } else {
    return s.is_real() ? static_cast<T>(s.real()) : static_cast<T>(s.whole());
  }
}

/// Calls f with a number of the compute type.
template <class F>
void with_compute_type(DType type, F f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    default: return f(std::int64_t{});
  }
}

}  // namespace quipu
