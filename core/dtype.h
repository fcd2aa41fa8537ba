#pragma once
// Element types, their C++ counterparts and the promotion rule.
#include <cstddef>
#include <cstdint>
#include <string>

namespace quipu {

/// Type of a tensor's elements: IEEE floats of 8, 4 and 2 bytes (f64, f32, f16), bfloat16 (bf16),
/// signed integers (i64, i32), bytes (u8) and truth values of one byte (boolean).
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, u8, boolean };

// Short names: zeros({2, 3}, bf16).
inline constexpr DType f64 = DType::f64;
inline constexpr DType f32 = DType::f32;
inline constexpr DType bf16 = DType::bf16;
inline constexpr DType f16 = DType::f16;
inline constexpr DType i64 = DType::i64;
inline constexpr DType i32 = DType::i32;
inline constexpr DType u8 = DType::u8;
inline constexpr DType boolean = DType::boolean;

/// Bytes of one element.
constexpr std::size_t size_of(DType t) {
  constexpr std::size_t bytes[] = {8, 4, 2, 2, 8, 4, 1, 1};
  return bytes[static_cast<int>(t)];
}
/// f64, f32, bf16 or f16: the types that can have a gradient.
constexpr bool is_floating(DType t) {
  return t <= DType::f16;
}
/// i64, i32 or u8; boolean is neither floating nor integral.
constexpr bool is_integral(DType t) {
  return !is_floating(t) && t != DType::boolean;
}

/// Distance from 1 to the next number of a floating type.
double epsilon_of(DType t);

/// "f32", "bool", ...
const char* name_of(DType t);
/// As name_of.
inline std::string to_string(DType t) {
  return name_of(t);
}

/// The type of `a op b`: floating beats integer beats bool, then the wider one; bf16 with f16 gives
/// f32. A scalar beside a tensor takes the tensor's type and never changes it.
DType promote(DType a, DType b);

/// bfloat16 bits; converts by rounding to nearest even, NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits;  // sign, 8 bits of exponent, 7 of fraction
};
/// IEEE half bits; converts by rounding to nearest even, NaN stays NaN.
struct Half {
  std::uint16_t bits;  // sign, 5 bits of exponent, 10 of fraction
};

/// The DType of a C++ element type; for any other type it does not compile.
template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "no quipu dtype for this C++ type");
  return DType::f64;
}();
// The eight element types.
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<BFloat16> = DType::bf16;
template <>
inline constexpr DType dtype_of<Half> = DType::f16;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;

namespace detail {

constexpr bool is_reduced(DType t) {
  return t == DType::bf16 || t == DType::f16;
}
/// The type that a kernel computes in: f64 for f64, i64 for integers and bool, f32 for the rest.
constexpr DType compute_type(DType t) {
  return t == DType::f64 ? DType::f64 : is_floating(t) ? DType::f32 : DType::i64;
}

BFloat16 to_bf16(double x);  // rounds once, from the double
Half to_f16(double x);
float to_float(BFloat16 x);
float to_float(Half x);

}  // namespace detail

}  // namespace quipu
