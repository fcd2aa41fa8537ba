// Every loop is written for one element and becomes vector instructions; tiles are dense and lie in
// the first-level cache or stream through it, so that the cheap functions are bounded by memory and
// the others by arithmetic.
#include "functions.h"

#include <cmath>
#include <limits>

#include "loops.h"
#include "quipu/cpu/simd/simd.h"
#include "quipu/cpu/simd/vector_acts.h"
#include "quipu/cpu/simd/vector_pow.h"
#include "quipu/cpu/simd/wrapping.h"

namespace quipu::detail::on_cpu {
namespace {

/// relu's gradient, written or added. A compiler would load only those d whose x is above zero, and
/// every load of d would wait for one of x: vectors of d are held before they are chosen from.
/// Added in the same loop, this takes 0.6 of the time of a tile that is added afterwards.
template <class T, bool add>
void map_relu_grad(const T* d, const T* x, const T*, T* o, std::int64_t n) {
  using Loose = typename Simd<T>::Loose;
  using Vector = typename Simd<T>::Vector;
  constexpr std::int64_t lanes = Simd<T>::lanes;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vector at = *reinterpret_cast<const Loose*>(x + i);
    Vector up = *reinterpret_cast<const Loose*>(d + i);
#if defined(__x86_64__)
    asm("" : "+v"(up));
#endif
    up = at <= Vector{} ? Vector{} : up;
    Loose& to = *reinterpret_cast<Loose*>(o + i);
    to = add ? to + up : up;
  }
  for (; i < n; ++i) {
    const T value = x[i] <= T(0) ? T(0) : d[i];
    o[i] = add ? o[i] + value : value;
  }
}

/// True when all entries are `value`.
template <class T>
bool all_equal(const T* x, T value, std::int64_t n) {
  int other = 0;
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) other |= x[i] == value ? 0 : 1;
  return other == 0;
}

/// Small constant exponents, the usual ones, need no logarithm.
template <class T>
void map_pow(const T* a, const T* b, const T* c, T* o, std::int64_t n) {
  PointwiseFunction<T> f = map<T>([](T x, T y) { return math::pow(x, y); });
  if (all_equal(b, b[0], n)) {
    if (b[0] == T(2)) f = map<T>([](T x) { return x * x; });
    if (b[0] == T(3)) f = map<T>([](T x) { return x * x * x; });
    if (b[0] == T(-1)) f = map<T>([](T x) { return T(1) / x; });
    if (b[0] == T(0.5)) {
      f = map<T>([](T x) {
        // Unlike sqrt, a power of -0 is 0 and one of -infinity is infinity.
        const T root = std::sqrt(x + T(0));
        return x == -std::numeric_limits<T>::infinity() ? -x : root;
      });
    }
  }
  f(a, b, c, o, n);
}
template <class T>
void map_pow_grad_a(const T* d, const T* x, const T* y, T* o, std::int64_t n) {
  PointwiseFunction<T> f =
      map<T>([](T a, T b, T c) { return c == T(0) ? T(0) : a * c * math::pow(b, c - T(1)); });
  if (all_equal(y, y[0], n)) {
    if (y[0] == T(2)) f = map<T>([](T a, T b) { return T(2) * a * b; });
    if (y[0] == T(3)) f = map<T>([](T a, T b) { return T(3) * a * (b * b); });
  }
  f(d, x, y, o, n);
}

template <class T>
T magnitude(T a) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::abs(a);
  } else {
    return a < T(0) ? wrapping_negation(a) : a;
  }
}

/// The functions that exist for whole numbers too.
template <class T>
PointwiseFunction<T> general_function(Pointwise f) {
  switch (f) {
    case Pointwise::copy: return map<T>([](T a) { return a; });
    case Pointwise::neg: return map<T>([](T a) { return wrapping_negation(a); });
    case Pointwise::abs: return map<T>([](T a) { return magnitude(a); });
    case Pointwise::sign: return map<T>([](T a) { return a > T(0) ? T(1) : a < T(0) ? T(-1) : a; });
    case Pointwise::logical_not: return map<T>([](T a) { return T(a == T(0)); });
    case Pointwise::add: return map<T>([](T a, T b) { return wrapping_sum(a, b); });
    case Pointwise::sub: return map<T>([](T a, T b) { return wrapping_difference(a, b); });
    case Pointwise::mul: return map<T>([](T a, T b) { return wrapping_product(a, b); });
    case Pointwise::maximum: return map<T>([](T a, T b) { return math::maximum(a, b); });
    case Pointwise::minimum: return map<T>([](T a, T b) { return math::minimum(a, b); });
    case Pointwise::eq: return map<T>([](T a, T b) { return T(a == b); });
    case Pointwise::ne: return map<T>([](T a, T b) { return T(a != b); });
    case Pointwise::lt: return map<T>([](T a, T b) { return T(a < b); });
    case Pointwise::le: return map<T>([](T a, T b) { return T(a <= b); });
    case Pointwise::gt: return map<T>([](T a, T b) { return T(a > b); });
    case Pointwise::ge: return map<T>([](T a, T b) { return T(a >= b); });
    case Pointwise::logical_and:
      return map<T>([](T a, T b) { return T((a != T(0)) & (b != T(0))); });
    case Pointwise::logical_or:
      return map<T>([](T a, T b) { return T((a != T(0)) | (b != T(0))); });
    case Pointwise::where: return map<T>([](T a, T b, T c) { return a != T(0) ? b : c; });
    case Pointwise::clamp:
      return map<T>([](T a, T low, T high) {
        const T raised = a < low ? low : a;
        return raised > high ? high : raised;
      });
    case Pointwise::fma:
      return map<T>([](T a, T b, T c) { return wrapping_sum(a, wrapping_product(b, c)); });
    case Pointwise::mul_mul:
      return map<T>([](T a, T b, T c) { return wrapping_product(wrapping_product(a, b), c); });
    default: return nullptr;
  }
}

template <class T>
PointwiseFunction<T> real_function(Pointwise f) {
  using math::SinCos;
  constexpr T infinity = std::numeric_limits<T>::infinity();
  switch (f) {
    case Pointwise::exp: return map<T>([](T a) { return math::exp(a); });
    case Pointwise::log: return map<T>([](T a) { return math::log(a); });
    case Pointwise::sqrt: return map<T>([](T a) { return std::sqrt(a); });
    case Pointwise::rsqrt: return map<T>([](T a) { return T(1) / std::sqrt(a); });
    case Pointwise::tanh: return map<T>([](T a) { return math::tanh(a); });
    case Pointwise::sin: return map_angle_a<T>([](T, SinCos<T> x) { return x.sin; });
    case Pointwise::cos: return map_angle_a<T>([](T, SinCos<T> x) { return x.cos; });
    case Pointwise::reciprocal: return map<T>([](T a) { return T(1) / a; });
    case Pointwise::relu: return map<T>([](T a) { return a <= T(0) ? T(0) : a; });
    case Pointwise::sigmoid: return map<T>([](T a) { return math::logistic(a).value; });
    case Pointwise::silu: return map<T>([](T a) { return math::silu(a); });
    case Pointwise::normal_cdf: return map<T>([](T a) { return math::normal(a).cdf; });
    case Pointwise::gelu: return map<T>([](T a) { return math::gelu(a); });
    case Pointwise::sub_sub: return map<T>([](T a, T b, T c) { return (a - b) - c; });
    case Pointwise::mul_silu: return map<T>([](T a, T b) { return a * math::silu(b); });
    case Pointwise::div: return map<T>([](T a, T b) { return a / b; });
    case Pointwise::pow: return map_pow<T>;
    case Pointwise::square_difference: return map<T>([](T a, T b) { return (a - b) * (a - b); });
    case Pointwise::exp_difference:
      return map<T>([](T a, T b) { return a == -infinity ? T(0) : math::exp(a - b); });
    case Pointwise::mul_exp_difference:
      return map<T>([](T a, T b, T c) { return b == -infinity ? T(0) : a * math::exp(b - c); });
    case Pointwise::mul_neg: return map<T>([](T a, T b) { return -a * b; });
    case Pointwise::mul_difference: return map<T>([](T a, T b, T c) { return a * (b - c); });
    case Pointwise::mul_div: return map<T>([](T a, T b, T c) { return a * b / c; });
    default: return nullptr;
  }
}

/// What x gets of d where the extremum of x and y is taken: all where it wins, half of it where
/// both do. NaN wins.
template <class T>
QUIPU_INLINE T share_of(T d, bool wins, T x, T y) {
  const bool x_is = x == x, y_is = y == y;  // numbers
  const bool all = wins | (!x_is & y_is), both = (x == y) | (!x_is & !y_is);
  return all ? d : both ? T(0.5) * d : T(0);
}

/// What backward passes on.
template <class T>
PointwiseFunction<T> gradient_function(Pointwise f) {
  using math::SinCos;
  switch (f) {
    case Pointwise::sqrt_grad: return map<T>([](T d, T o) { return d / (T(2) * o); });
    case Pointwise::rsqrt_grad: return map<T>([](T d, T o) { return T(-0.5) * d * (o * o * o); });
    case Pointwise::tanh_grad:
      return map<T>([](T d, T o) { return d * ((T(1) - o) * (T(1) + o)); });
    case Pointwise::sin_grad: return map_angle_b<T>([](T d, SinCos<T> x) { return d * x.cos; });
    case Pointwise::cos_grad: return map_angle_b<T>([](T d, SinCos<T> x) { return -d * x.sin; });
    case Pointwise::abs_grad:
      return map<T>([](T d, T x) { return x > T(0) ? d : x < T(0) ? -d : x; });
    case Pointwise::relu_grad: return map_relu_grad<T, false>;
    case Pointwise::sigmoid_grad:
      return map<T>([](T d, T x) { return d * math::logistic_slope(x); });
    case Pointwise::silu_grad: return map<T>([](T d, T x) { return d * math::silu_slope(x); });
    case Pointwise::normal_cdf_grad:
      return map<T>([](T d, T x) { return d * math::normal(x).density; });
    case Pointwise::gelu_grad: return map<T>([](T d, T x) { return d * math::gelu_slope(x); });
    case Pointwise::mul_silu_grad:
      return map<T>([](T d, T x, T y) { return d * y * math::silu_slope(x); });
    case Pointwise::div_grad_b: return map<T>([](T d, T o, T y) { return -d * o / y; });
    case Pointwise::pow_grad_a: return map_pow_grad_a<T>;
    case Pointwise::pow_grad_b:
      return map<T>([](T d, T x, T o) {
        return x == T(0) && std::abs(o) <= T(1) ? T(0) : d * o * math::log(x);
      });
    case Pointwise::where_first: return map<T>([](T a, T d) { return a != T(0) ? d : T(0); });
    case Pointwise::where_second: return map<T>([](T a, T d) { return a != T(0) ? T(0) : d; });
    case Pointwise::maximum_grad:
      return map<T>([](T d, T x, T y) { return share_of(d, x > y, x, y); });
    case Pointwise::minimum_grad:
      return map<T>([](T d, T x, T y) { return share_of(d, x < y, x, y); });
    case Pointwise::clamp_grad_low:
      return map<T>([](T d, T x, T low) { return x < low ? T(0) : d; });
    case Pointwise::clamp_grad_high:
      return map<T>([](T d, T x, T high) { return x > high ? T(0) : d; });
    default: return nullptr;
  }
}

}  // namespace

template <class T>
PointwiseFunction<T> pointwise_function(Pointwise f) {
  PointwiseFunction<T> found = general_function<T>(f);
  if (!found) found = rare_function<T>(f);
  if constexpr (std::is_floating_point_v<T>) {
    if (!found) found = real_function<T>(f);
    if (!found) found = gradient_function<T>(f);
  }
  return found;
}

template <class T>
PointwiseFunction<T> adding_function(Pointwise f) {
  if constexpr (std::is_floating_point_v<T>) {
    if (f == Pointwise::relu_grad) return map_relu_grad<T, true>;
  }
  return nullptr;
}

template PointwiseFunction<float> pointwise_function(Pointwise);
template PointwiseFunction<double> pointwise_function(Pointwise);
template PointwiseFunction<std::int64_t> pointwise_function(Pointwise);
template PointwiseFunction<float> adding_function(Pointwise);
template PointwiseFunction<double> adding_function(Pointwise);
template PointwiseFunction<std::int64_t> adding_function(Pointwise);

}  // namespace quipu::detail::on_cpu
