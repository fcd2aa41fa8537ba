#pragma once
// What the formulas of the reference are written on: a tensor's values in f64, dense and row-major,
// as Eigen arrays and matrices. Operands are read into them, results written from them, rounded
// once. Plain loops, no tiles, one thread. Internal to cpu/reference/.
#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/dispatch/elements.h"
#include "quipu/core/text.h"

namespace quipu::detail::reference {

/// T is double, or std::int64_t for whole numbers, which wrap.
template <class T>
using Numbers = Eigen::Array<T, Eigen::Dynamic, 1>;
using Array = Numbers<double>;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;
using WholeArray = Numbers<std::int64_t>;

/// Calls f with a number of the type that elements of `dtype` are computed in.
template <class F>
void with_numbers_of(DType dtype, F f) {
  is_floating(dtype) ? f(double{}) : f(std::int64_t{});
}
template <class T>
T plus(T a, T b) {
  using Wrapping = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  return static_cast<T>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
}

/// The standard library's function of each entry. Eigen's own exp of vectors is never 0, not even
/// at -infinity.
template <class Numbers>
auto exp_of(const Numbers& x) {
  return x.unaryExpr([](double v) { return std::exp(v); });
}

/// The values of a tensor.
struct Values {
  Shape shape;
  Array flat;  // row-major

  Values() = default;
  explicit Values(const Shape& s) : shape(s), flat(Array::Zero(numel(s))) {}
  std::int64_t size(int d) const { return shape[d]; }
  std::int64_t last() const { return shape.empty() ? 1 : shape[shape.size() - 1]; }

  /// All but the last dimension as rows.
  MatrixMap rows() { return {flat.data(), last() == 0 ? 0 : flat.size() / last(), last()}; }
  /// The matrix of the last two dimensions at position i of the others, counted through.
  MatrixMap matrix(std::int64_t i) {
    const std::int64_t m = shape[shape.size() - 2], n = last();
    return {flat.data() + i * m * n, m, n};
  }
};

/// The elements of a view. One that is not defined has no shape and no elements.
inline Values read(const View& view) {
  Values v;
  if (!view.defined) return v;
  v = Values(view.shape);
  for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
    v.flat[i] = load_element<double>(view.data, view.dtype, offset);
  });
  return v;
}
/// The same as numbers of one type.
template <class T>
Numbers<T> read_as(const View& view) {
  Numbers<T> v(view.numel());
  for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
    v[i] = load_element<T>(view.data, view.dtype, offset);
  });
  return v;
}
inline WholeArray read_whole(const View& view) {
  return read_as<std::int64_t>(view);
}

/// What a whole type has of a real number: cut towards zero, the nearest end of its range where it
/// is beyond, 0 for NaN.
inline std::int64_t cut_to(DType dtype, double x) {
  const auto within = [&]<class Whole>(Whole) -> std::int64_t {
    using Limits = std::numeric_limits<Whole>;
    if (x < static_cast<double>(Limits::min())) return Limits::min();
    if (x >= static_cast<double>(Limits::max())) return Limits::max();
    return std::isnan(x) ? 0 : static_cast<std::int64_t>(x);
  };
  return dtype == i64   ? within(std::int64_t{})
         : dtype == i32 ? within(std::int32_t{})
                        : within(std::uint8_t{});
}
inline void store_number(const View& view, std::int64_t offset, double x) {
  if (is_integral(view.dtype)) {
    store_element(view.data, view.dtype, offset, cut_to(view.dtype, x));
  } else {
    store_element(view.data, view.dtype, offset, x);
  }
}
inline void store_number(const View& view, std::int64_t offset, std::int64_t x) {
  // f64 has no room for the last 11 bits of large numbers. One of them keeps what they say about
  // the rounding to fewer bits.
  constexpr std::int64_t low_bits = 0x7ff;
  if (is_reduced(view.dtype) && std::abs(x / 2) >= std::int64_t{1} << 52 && (x & low_bits) != 0) {
    x = (x & ~low_bits) | 0x400;
  }
  store_element(view.data, view.dtype, offset, x);
}
/// A number as an element of `dtype` has it.
inline double rounded_to(DType dtype, double x) {
  double element;
  store_element(&element, dtype, 0, x);
  return load_element<double>(&element, dtype, 0);
}

/// Leaves values in a target of as many elements, written or added, rounded once. Nothing happens
/// where nobody wants them.
template <class Numbers>
void store(const Target& target, const Numbers& values) {
  const View& view = target.view;
  if (!target.wanted()) return;
  for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
    auto value = values[i];
    if (target.add)
      value = plus(value, load_element<decltype(value)>(view.data, view.dtype, offset));
    store_number(view, offset, value);
  });
}
inline void store(const Target& target, const Values& values) {
  store(target, values.flat);
}
template <class Numbers>
void store(const View& view, const Numbers& values) {
  store(Target::write_to(view), values);
}

/// The same of values that are summed from terms of these sizes, which may be larger than they are.
inline void store(const Target& target, const Values& values, const Array& term_sizes) {
  store(target, values);
  if (target.wanted()) {
    note_term_sizes(target.view, {term_sizes.begin(), term_sizes.end()});
  }
}

/// The sums of values that run over a shape, along the dimensions that `kept` lacks or has with
/// size 1. Long sums need more digits than f64 on the way.
template <class T>
Numbers<T> summed_to(const Shape& kept, const Numbers<T>& values, const Shape& over) {
  using Wide = std::conditional_t<std::is_integral_v<T>, T, long double>;
  Numbers<Wide> sums = Numbers<Wide>::Zero(numel(kept));
  const Strides strides = broadcast_strides(kept, contiguous_strides(kept), over);
  for_each_element(over, strides, [&](std::int64_t i, std::int64_t place) {
    sums[place] = plus(sums[place], static_cast<Wide>(values[i]));
  });
  return sums.template cast<T>();
}

/// A view that repeats its elements over a shape.
inline View broadcast(View view, const Shape& shape) {
  view.strides = broadcast_strides(view.shape, view.strides, shape);
  view.shape = shape;
  return view;
}
/// A view whose dimension `axis` is the last; the others keep their order.
inline View with_axis_last(View view, int axis) {
  if (!view.defined) return view;
  const std::int64_t size = view.shape[axis], stride = view.strides[axis];
  view.shape.erase(axis), view.strides.erase(axis);
  view.shape.push_back(size), view.strides.push_back(stride);
  return view;
}
inline Target with_axis_last(const Target& target, int axis) {
  return {with_axis_last(target.view, axis), target.add};
}

}  // namespace quipu::detail::reference
