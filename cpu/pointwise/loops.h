#pragma once
// A function of one element as a loop over tiles.
#include <cstdint>
#include <type_traits>

#include "functions.h"
#include "quipu/cpu/simd/vector_math.h"

namespace quipu::detail::on_cpu {

template <class T, class F>
void map_unary(const T* a, const T*, const T*, T* o, std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) o[i] = F{}(a[i]);
}
template <class T, class F>
void map_binary(const T* a, const T* b, const T*, T* o, std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) o[i] = F{}(a[i], b[i]);
}
template <class T, class F>
void map_ternary(const T* a, const T* b, const T* c, T* o, std::int64_t n) {
  QUIPU_VECTORIZE
  for (std::int64_t i = 0; i < n; ++i) o[i] = F{}(a[i], b[i], c[i]);
}

/// The loop over a function of one, two or three elements. The function is a lambda without
/// captures.
template <class T, class F>
PointwiseFunction<T> map(F) {
  if constexpr (std::is_invocable_v<F, T>) {
    return map_unary<T, F>;
  } else if constexpr (std::is_invocable_v<F, T, T>) {
    return map_binary<T, F>;
  } else {
    return map_ternary<T, F>;
  }
}

/// o[i] = F(a[i], sin and cos of angle[i]).
template <class T, class F>
void map_angles(const T* a, const T* angle, T* o, std::int64_t n) {
  if (math::within_sincos_limit(angle, n)) {
    QUIPU_VECTORIZE
    for (std::int64_t i = 0; i < n; ++i) o[i] = F{}(a[i], math::sincos(angle[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) o[i] = F{}(a[i], math::sincos_anywhere(angle[i]));
  }
}
template <class T, class F>
PointwiseFunction<T> map_angle_a(F) {
  return [](const T* a, const T*, const T*, T* o, std::int64_t n) { map_angles<T, F>(a, a, o, n); };
}
template <class T, class F>
PointwiseFunction<T> map_angle_b(F) {
  return
      [](const T* a, const T* b, const T*, T* o, std::int64_t n) { map_angles<T, F>(a, b, o, n); };
}

}  // namespace quipu::detail::on_cpu
