#pragma once
// What the formulas of the reference are written on: a tensor's values in f64, dense and row-major,
// as Eigen arrays and matrices. Operands are read into them, results written from them, rounded
// once. Plain loops, no tiles, one thread. Internal to cpu/reference/.
#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <utility>

#include "quipu/core/dispatch/dispatch.h"
#include "quipu/core/dispatch/elements.h"

namespace quipu::detail::reference {

using Array = Eigen::ArrayXd;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;
using WholeArray = Eigen::Array<std::int64_t, Eigen::Dynamic, 1>;

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
/// The same of whole numbers.
inline WholeArray read_whole(const View& view) {
  WholeArray v(view.numel());
  for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
    v[i] = load_element<std::int64_t>(view.data, view.dtype, offset);
  });
  return v;
}

/// Leaves values in a target of as many elements, written or added, rounded once. Nothing happens
/// where nobody wants them.
template <class Numbers>
void store(const Target& target, const Numbers& values) {
  const View& view = target.view;
  if (!target.wanted()) return;
  for_each_element(view.shape, view.strides, [&](std::int64_t i, std::int64_t offset) {
    auto value = values[i];
    if (target.add) value += load_element<decltype(value)>(view.data, view.dtype, offset);
    store_element(view.data, view.dtype, offset, value);
  });
}
inline void store(const Target& target, const Values& values) {
  store(target, values.flat);
}
template <class Numbers>
void store(const View& view, const Numbers& values) {
  store(Target::write_to(view), values);
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
