// Pointwise functions whose operands and output are dense bf16: numbers are widened, computed and
// rounded in registers, so that what moves is the tensors alone. The cheap functions are bounded by
// memory, the others by arithmetic.
#include <type_traits>

#include "functions.h"
#include "quipu/cpu/simd/bfloat16.h"
#include "quipu/cpu/simd/vector_acts.h"

namespace quipu::detail::on_cpu {
namespace {

template <class F>
QUIPU_INLINE float value_at(const BFloat16* a, const BFloat16* b, std::int64_t i) {
  if constexpr (std::is_invocable_v<F, float>) {
    return F{}(widened(a[i]));
  } else {
    return F{}(widened(a[i]), widened(b[i]));
  }
}

/// The loop over a function of one or two numbers, a lambda without captures.
template <class F>
Bf16Function map(F) {
  return [](const BFloat16* a, const BFloat16* b, BFloat16* o, std::int64_t n, bool add) {
    if (add) {
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) o[i] = narrowed(widened(o[i]) + value_at<F>(a, b, i));
    } else {
      QUIPU_VECTORIZE
      for (std::int64_t i = 0; i < n; ++i) o[i] = narrowed(value_at<F>(a, b, i));
    }
  };
}

}  // namespace

Bf16Function bf16_function(Pointwise f) {
  using T = float;
  switch (f) {
    case Pointwise::add: return map([](T a, T b) { return a + b; });
    case Pointwise::sub: return map([](T a, T b) { return a - b; });
    case Pointwise::mul: return map([](T a, T b) { return a * b; });
    case Pointwise::div: return map([](T a, T b) { return a / b; });
    case Pointwise::maximum: return map([](T a, T b) { return math::maximum(a, b); });
    case Pointwise::minimum: return map([](T a, T b) { return math::minimum(a, b); });
    case Pointwise::relu: return map([](T a) { return a <= T(0) ? T(0) : a; });
    case Pointwise::sigmoid: return map([](T a) { return math::logistic(a).value; });
    case Pointwise::silu: return map([](T a) { return math::silu(a); });
    case Pointwise::gelu: return map([](T a) { return math::gelu(a); });
    case Pointwise::relu_grad: return map([](T d, T x) { return x <= T(0) ? T(0) : d; });
    case Pointwise::sigmoid_grad: return map([](T d, T x) { return d * math::logistic_slope(x); });
    case Pointwise::silu_grad: return map([](T d, T x) { return d * math::silu_slope(x); });
    case Pointwise::gelu_grad: return map([](T d, T x) { return d * math::gelu_slope(x); });
    default: return nullptr;
  }
}

}  // namespace quipu::detail::on_cpu
