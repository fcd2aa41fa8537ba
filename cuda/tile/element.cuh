#pragma once
// Elements of any type on the device, and the three types that kernels compute in: f32, f64, i64.
// Conversions round once, to nearest even; reals saturate in whole types and NaN gives 0; whole
// numbers wrap in narrower ones; bool is `!= 0`: bit for bit as on the CPU.
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "quipu/core/dtype.h"
#include "quipu/cuda/launch.h"

namespace quipu::detail::on_cuda {

/// bool as it lies in memory; any bits but zero are true.
struct Truth {
  std::uint8_t bits;
};

template <class T>
inline constexpr DType element_dtype = dtype_of<T>;
template <>
inline constexpr DType element_dtype<__nv_bfloat16> = DType::bf16;
template <>
inline constexpr DType element_dtype<__half> = DType::f16;
template <>
inline constexpr DType element_dtype<Truth> = DType::boolean;

template <class T>
inline constexpr bool is_reduced_v = std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __half>;

/// Whole numbers wrap instead of overflowing.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
template <class T>
__device__ __forceinline__ T wrapping_sum(T a, T b) {
  const auto sum = static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b);
  return static_cast<T>(sum);
}

/// Rounded to f32 by setting the last bit if anything was lost: a second rounding to fewer bits
/// then gives the same as one rounding of x.
__device__ __forceinline__ float rounded_to_odd(float x) {
  return x;
}
__device__ __forceinline__ float rounded_to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = f;
  auto bits = std::bit_cast<std::uint32_t>(f);
  bits -= std::abs(back) > std::abs(x) ? 1u : 0u;
  bits |= back != x ? 1u : 0u;
  return std::bit_cast<float>(bits);
}
__device__ __forceinline__ float rounded_to_odd(std::int64_t x) {
  // The low bits of a number beyond 2^53 shrink to one that says whether any was set.
  constexpr std::int64_t exact = std::int64_t{1} << 53, low_bits = 0x7ff;
  const std::int64_t shortened = (x & ~low_bits) | ((x & low_bits) != 0 ? 0x400 : 0);
  return rounded_to_odd(static_cast<double>(x > -exact && x < exact ? x : shortened));
}

/// Cut towards zero, clamped to the range; NaN gives 0.
template <class Whole, class Real>
__device__ __forceinline__ Whole saturated(Real x) {
  constexpr Whole least = std::numeric_limits<Whole>::min(),
                  most = std::numeric_limits<Whole>::max();
  constexpr Real low = static_cast<Real>(least);
  constexpr Real beyond = Real(2) * static_cast<Real>(most / 2 + 1);
  const bool inside = x >= low && x < beyond;
  const Whole cut = static_cast<Whole>(inside ? x : Real(0));
  return x >= beyond ? most : x < low ? least : cut;
}

template <class To, class From>
__device__ __forceinline__ To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (std::is_same_v<From, Truth>) {
    return static_cast<To>(x.bits != 0);
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return converted<To>(__bfloat162float(x));
  } else if constexpr (std::is_same_v<From, __half>) {
    return converted<To>(__half2float(x));
  } else if constexpr (std::is_same_v<To, Truth>) {
    return Truth{static_cast<std::uint8_t>(x != From(0))};
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(rounded_to_odd(x));
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(rounded_to_odd(x));
  } else if constexpr (std::is_floating_point_v<From> && !std::is_floating_point_v<To>) {
    return saturated<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

/// Element i of an array whose type is known when the kernel runs; all threads take one branch.
template <class T>
__device__ __forceinline__ T load_element(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f64: return converted<T>(static_cast<const double*>(data)[i]);
    case DType::f32: return converted<T>(static_cast<const float*>(data)[i]);
    case DType::bf16: return converted<T>(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::f16: return converted<T>(static_cast<const __half*>(data)[i]);
    case DType::i64: return converted<T>(static_cast<const std::int64_t*>(data)[i]);
    case DType::i32: return converted<T>(static_cast<const std::int32_t*>(data)[i]);
    case DType::u8: return converted<T>(static_cast<const std::uint8_t*>(data)[i]);
    default: return converted<T>(static_cast<const Truth*>(data)[i]);
  }
}

template <class T>
__device__ __forceinline__ void store_element(void* data, DType dtype, std::int64_t i, T value) {
  switch (dtype) {
    case DType::f64: static_cast<double*>(data)[i] = converted<double>(value); break;
    case DType::f32: static_cast<float*>(data)[i] = converted<float>(value); break;
    case DType::bf16: static_cast<__nv_bfloat16*>(data)[i] = converted<__nv_bfloat16>(value); break;
    case DType::f16: static_cast<__half*>(data)[i] = converted<__half>(value); break;
    case DType::i64: static_cast<std::int64_t*>(data)[i] = converted<std::int64_t>(value); break;
    case DType::i32: static_cast<std::int32_t*>(data)[i] = converted<std::int32_t>(value); break;
    case DType::u8: static_cast<std::uint8_t*>(data)[i] = converted<std::uint8_t>(value); break;
    default: static_cast<Truth*>(data)[i] = converted<Truth>(value); break;
  }
}

/// Element i (=|+=) value. The sum is made in a type that holds both, and rounded once.
template <class T>
__device__ __forceinline__ void put_element(void* data, DType dtype, std::int64_t i, T value,
                                            bool add) {
  if (!add) return store_element(data, dtype, i, value);
  if (compute_type(dtype) == dtype_of<T>) {
    store_element(data, dtype, i, wrapping_sum(load_element<T>(data, dtype, i), value));
  } else {
    const double sum = load_element<double>(data, dtype, i) + static_cast<double>(value);
    store_element(data, dtype, i, sum);
  }
}

}  // namespace quipu::detail::on_cuda
