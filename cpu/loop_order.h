#pragma once
// The order in which a loop over several views visits its positions. What a loop does to each of
// them does not depend on it; its speed does.
#include <cstdlib>

#include "layout.h"

namespace quipu::detail::on_cpu {

/// Moves dimension `from` to the place `to`; those between move up or down.
template <int N>
void move_dim(Layout<N>& layout, int from, int to) {
  const auto move = [&](Dims& dims) {
    const std::int64_t value = dims[from];
    dims.erase(from);
    dims.insert(to, value);
  };
  move(layout.shape);
  for (int v = 0; v < N; ++v) move(layout[v]);
}

/// Orders the dimensions by falling key(layout, dim), equal ones as they were.
template <int N, class Key>
void sort_dims(Layout<N>& layout, Key key) {
  for (int d = 1; d < layout.shape.size(); ++d) {
    int to = d;
    while (to > 0 && key(layout, to - 1) < key(layout, d)) --to;
    if (to != d) move_dim(layout, d, to);
  }
}

/// The positions in the order in which the first view lies in memory, with as few dimensions as
/// that allows.
template <int N>
Layout<N> in_memory_order(const Layout<N>& any_order) {
  Layout<N> layout = any_order.merged();
  if (layout.shape.size() == 1) return layout;
  sort_dims(layout, [](const Layout<N>& l, int d) { return std::abs(l[0][d]); });
  return layout.merged();
}

/// A dimension along which some view lies denser than along the last one; -1 if there is none.
template <int N>
int crossing_dim(const Layout<N>& layout) {
  const int last = layout.shape.size() - 1;
  for (int v = 0; v < N; ++v) {
    int densest = last;
    for (int d = 0; d < last; ++d) {
      if (layout[v][d] != 0 && std::abs(layout[v][d]) < std::abs(layout[v][densest])) densest = d;
    }
    if (densest != last) return densest;
  }
  return -1;
}

/// Calls f(part, starts) for one or two parts that make up the layout; `starts` are the offsets of
/// their first elements. Where views lie across each other (a transposed operand), the parts are
/// strips of `strip` columns: the cache lines that one row of a strip touches are still there for
/// the next row.
template <int N, class F>
void for_each_part(Layout<N> layout, F f) {
  constexpr std::int64_t strip = 64;
  const int last = layout.shape.size() - 1;
  const int crossing = crossing_dim(layout);
  if (crossing >= 0) move_dim(layout, crossing, last - 1);
  const std::int64_t columns = layout.shape[last], strips = columns / strip;
  if (crossing < 0 || strips < 2 || layout.shape.size() == max_dims) return f(layout, Offsets<N>{});

  Layout<N> whole = layout, rest = layout;
  whole.shape[last] = strip;
  whole.shape.insert(0, strips);
  rest.shape[last] = columns % strip;
  Offsets<N> rest_starts{};
  for (int v = 0; v < N; ++v) {
    whole[v].insert(0, layout[v][last] * strip);
    rest_starts[static_cast<std::size_t>(v)] = layout[v][last] * strip * strips;
  }
  f(whole, Offsets<N>{});
  if (columns % strip != 0) f(rest, rest_starts);
}

}  // namespace quipu::detail::on_cpu
