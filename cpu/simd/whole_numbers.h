#pragma once
// Reading whole numbers of either index type.
#include "convert.h"
#include "quipu/cpu/layout.h"

namespace quipu::detail::on_cpu {

/// The whole number that lies `offset` elements behind the start of a view.
inline std::int64_t whole_at(const View& v, std::int64_t offset) {
  std::int64_t value;
  load_run(&value, at(v, offset), v.dtype, 1, 1);
  return value;
}

/// Calls f(position, values, n) for stretches of a view in row-major order.
template <class F>
void for_each_stretch(const View& v, F f) {
  constexpr std::int64_t tile = 512;
  const Layout<1> layout = Layout<1>{v.shape, {v.strides}}.merged();
  std::int64_t values[tile];
  for_each_run(layout, 0, v.numel(), tile,
               [&](std::int64_t position, std::int64_t n, const Offsets<1>& offset) {
                 load_run(values, at(v, offset[0]), v.dtype, layout[0].back(), n);
                 f(position, values, n);
               });
}

/// The index of a row-major position.
inline Dims index_of(const Shape& shape, std::int64_t position) {
  Dims index = shape;
  for (int d = shape.size() - 1; d >= 0; --d) {
    index[d] = position % shape[d];
    position /= shape[d];
  }
  return index;
}

}  // namespace quipu::detail::on_cpu
