#include "quipu/core/dtype.h"

#include <bit>
#include <cmath>
#include <limits>

#include "quipu/core/error.h"
#include "quipu/core/scalar.h"

namespace quipu {
using namespace detail;
namespace {

/// The double as a float, rounded to odd: a second rounding to fewer bits is then the same as one
/// rounding.
float round_to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = f;
  if (back == x || std::isnan(x) || std::isinf(x)) return f;
  if (std::isinf(f)) return std::copysign(0x1.fffffep127f, f);
  auto bits = std::bit_cast<std::uint32_t>(f);
  if (std::abs(back) > std::abs(x)) --bits;  // towards zero, then mark as inexact
  return std::bit_cast<float>(bits | 1u);
}

int width_rank(DType t) {
  switch (t) {
    case DType::f64: return 8;
    case DType::f32: return 7;
    case DType::bf16:
    case DType::f16: return 6;
    case DType::i64: return 5;
    case DType::i32: return 4;
    case DType::u8: return 3;
    case DType::boolean: return 2;
  }
  return 0;
}

}  // namespace

double epsilon_of(DType t) {
  switch (t) {
    case DType::f64: return 0x1p-52;
    case DType::f32: return 0x1p-23;
    case DType::bf16: return 0x1p-7;
    case DType::f16: return 0x1p-10;
    default: return 0;
  }
}

const char* name_of(DType t) {
  constexpr const char* names[] = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
  return t <= DType::boolean ? names[static_cast<int>(t)] : "no type";
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_reduced(a) && is_reduced(b)) return DType::f32;
  return width_rank(a) >= width_rank(b) ? a : b;
}

BFloat16 detail::to_bf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(round_to_odd(x));
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((bits >> 16) |
                                       0x40u)};  // quiet, so that no NaN becomes infinity
  }
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

Half detail::to_f16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(round_to_odd(x));
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u)
    return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // from 65520 on
  if (magnitude <
      0x38800000u) {  // subnormal: adding 0.5 puts the last kept bit at the end of the mantissa
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {
        static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u))};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

float detail::to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

float detail::to_float(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x0400u)
    return std::bit_cast<float>(
        sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

std::string to_string(const Scalar& s) {
  std::string text;
  if (s.is_real()) {
    append_double(text, s.real());
  } else {
    text = std::to_string(s.whole());
  }
  return text;
}

void detail::check_scalar(const Scalar& s, DType dtype) {
  check(!s.is_real() || is_floating(dtype), "the scalar ", s, " is real, but the tensor is ", dtype,
        "; scalars do not change a tensor's type: convert it first with .to(f32)");
}

namespace {

struct WholeRange {
  std::int64_t low, high;
};
template <class T>
constexpr WholeRange range_of{std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};

/// Every i64 for floating types.
WholeRange whole_range(DType dtype) {
  switch (dtype) {
    case DType::i32: return range_of<std::int32_t>;
    case DType::u8: return range_of<std::uint8_t>;
    case DType::boolean: return range_of<bool>;
    default: return range_of<std::int64_t>;
  }
}

}  // namespace

void detail::check_value(const Scalar& s, DType dtype) {
  check_scalar(s, dtype);
  if (is_floating(dtype)) return;
  const auto [low, high] = whole_range(dtype);
  check(s.whole() >= low && s.whole() <= high, "the value ", s, " is out of range for type ", dtype,
        ", which holds ", low, " to ", high, "; convert the tensor first with .to(i64)");
}

Scalar detail::in_type(const Scalar& s, DType dtype) {
  if (!is_reduced(dtype)) return s;
  const float rounded =
      dtype == DType::bf16 ? to_float(to_bf16(s.real())) : to_float(to_f16(s.real()));
  return std::isinf(rounded) ? s : Scalar(rounded);
}

Scalar detail::lower_bound_in(const Scalar& s, DType dtype) {
  check_scalar(s, dtype);
  if (is_floating(dtype)) return in_type(s, dtype);
  if (s.whole() < whole_range(dtype).low) return whole_range(dtype).low;
  check_value(s, dtype);
  return s;
}

Scalar detail::upper_bound_in(const Scalar& s, DType dtype) {
  check_scalar(s, dtype);
  if (is_floating(dtype)) return in_type(s, dtype);
  if (s.whole() > whole_range(dtype).high) return whole_range(dtype).high;
  check_value(s, dtype);
  return s;
}

}  // namespace quipu
