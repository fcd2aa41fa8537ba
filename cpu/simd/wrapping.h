#pragma once
// Arithmetic on any compute type in which whole numbers wrap instead of overflowing.
#include <cstdint>
#include <type_traits>

namespace quipu::detail::on_cpu {

template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;

template <class T>
T wrapping_sum(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
T wrapping_difference(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <class T>
T wrapping_product(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <class T>
T wrapping_negation(T a) {
  return static_cast<T>(-static_cast<Wrapping<T>>(a));
}

}  // namespace quipu::detail::on_cpu
