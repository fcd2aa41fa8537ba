#pragma once
// A number beside a tensor: keeps whether it was whole, so that nothing is cut off in silence.
#include <concepts>
#include <cstdint>
#include <string>

#include "quipu/core/dtype.h"

namespace quipu {

/// Any C++ number or bool, as operators take it: x * 2, fill_(0.5).
class Scalar {
 public:
  // Implicit, and exact for whole numbers of i64; larger unsigned ones become real.
  template <std::floating_point T>
  Scalar(T v) : real_(static_cast<double>(v)), whole_(0), kind_(Kind::real) {}
  template <std::integral T>
  Scalar(T v)
      : real_(static_cast<double>(v)),
        whole_(static_cast<std::int64_t>(v)),
        kind_(std::same_as<T, bool> ? Kind::boolean : Kind::whole) {
    // Beyond i64 it is as real as any other large number.
    if (std::unsigned_integral<T> && whole_ < 0) kind_ = Kind::real;
  }

  /// The value as a double; whole numbers beyond 2^53 are rounded.
  double real() const { return real_; }
  /// The value as an integer; a real one loses its fraction and must be within i64.
  std::int64_t whole() const {
    return kind_ == Kind::real ? static_cast<std::int64_t>(real_) : whole_;
  }
  /// True when made from a floating-point number (also 2.0), or an unsigned one beyond i64.
  bool is_real() const { return kind_ == Kind::real; }
  /// f32 for a real number, i64 for a whole one, bool for a truth value.
  DType natural_dtype() const {
    return kind_ == Kind::real ? DType::f32 : kind_ == Kind::whole ? DType::i64 : DType::boolean;
  }

 private:
  enum class Kind : std::uint8_t { real, whole, boolean };
  double real_;
  std::int64_t whole_;
  Kind kind_;
};

/// "0.5", "2"; 1 or 0 for a truth value.
std::string to_string(const Scalar& s);

namespace detail {

/// Throws unless `s` can stand beside a tensor of `dtype` without losing its fraction.
void check_scalar(const Scalar& s, DType dtype);
/// Throws unless an element of `dtype` can be `s`: as check_scalar, and a whole number must be in
/// range.
void check_value(const Scalar& s, DType dtype);

/// `s` as a tensor of `dtype` beside it has it: rounded to a reduced type, unless it is finite and
/// beyond its range. Other types are those that functions are computed in.
Scalar in_type(const Scalar& s, DType dtype);
/// The same of a lower or upper bound of a tensor. Beyond the range of a whole type it becomes the
/// nearest end where that means the same; where every entry would become it, it throws.
Scalar lower_bound_in(const Scalar& s, DType dtype);
Scalar upper_bound_in(const Scalar& s, DType dtype);

}  // namespace detail

}  // namespace quipu
