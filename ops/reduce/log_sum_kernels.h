#pragma once
// A log-sum-exp that keeps its digits. Internal to ops/ and the back ends.
#include "quipu/core/dispatch/call.h"

namespace quipu::detail {

/// lse + rest is the log-sum-exp: lse as rounded, and what the rounding left off. Weights are
/// exp((x - lse) - rest); without the rest, those of large numbers would be off by their rounding:
/// by half at 1e7 in f32.
template <class T>
struct LogSum {
  T lse, rest;
};

/// From the largest number and the logarithm of the sum of exp(x - largest), which may have more
/// digits than T.
template <class T, class Wide>
constexpr LogSum<T> log_sum_of(T largest, Wide log_sum) {
  const Wide most = static_cast<Wide>(largest);
  const T lse = static_cast<T>(most + log_sum);
  const bool finite = lse - lse == T(0);  // infinity and NaN have no rest
  return {lse, finite ? static_cast<T>((most - static_cast<Wide>(lse)) + log_sum) : T(0)};
}

/// Those of many rows, in two tensors of one shape and strides, of the compute type.
struct LogSums {
  View lse, rest;

  template <class F>
  void each_view(F f) {
    f("lse", lse, Role::value), f("lse + rest", rest, Role::rest);
  }
};
/// The two halves of a tensor (2, ...) of both.
inline LogSums halves_of(const View& both) {
  const auto half = [&](std::int64_t i) {
    View v = both;
    v.data = both.as<char>() + i * both.stride(0) * static_cast<std::int64_t>(size_of(both.dtype));
    v.shape.erase(0);
    v.strides.erase(0);
    return v;
  };
  return both.defined ? LogSums{half(0), half(1)} : LogSums();
}

}  // namespace quipu::detail
