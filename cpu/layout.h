#pragma once
// Walking several views of one shape together.
#include <algorithm>
#include <array>
#include <cstdint>

#include "quipu/core/dispatch/view.h"

namespace quipu::detail::on_cpu {

template <int N>
using Offsets = std::array<std::int64_t, static_cast<std::size_t>(N)>;

/// The strides of N views of one shape.
template <int N>
struct Layout {
  Shape shape;
  std::array<Strides, static_cast<std::size_t>(N)> strides;

  Strides& operator[](int view) { return strides[static_cast<std::size_t>(view)]; }
  const Strides& operator[](int view) const { return strides[static_cast<std::size_t>(view)]; }

  /// The same positions in the same order with as few dimensions as the strides allow, at least
  /// one.
  Layout merged() const {
    if (shape.size() == 1) return *this;
    Layout result;
    const auto push = [&](std::int64_t size, auto stride_of) {
      result.shape.push_back(size);
      for (int v = 0; v < N; ++v) result[v].push_back(stride_of(v));
    };
    for (int d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const int last = result.shape.size() - 1;
      bool fits = last >= 0;
      for (int v = 0; v < N && fits; ++v) fits = result[v][last] == (*this)[v][d] * shape[d];
      if (fits) {
        result.shape[last] *= shape[d];
        for (int v = 0; v < N; ++v) result[v][last] = (*this)[v][d];
      } else {
        push(shape[d], [&](int v) { return (*this)[v][d]; });
      }
    }
    if (result.shape.empty()) push(1, [](int) { return 1; });
    return result;
  }
};

/// A row-major position in a layout, and where it lies in each view, in elements.
template <int N>
class Odometer {
 public:
  explicit Odometer(const Layout<N>& layout)
      : layout_(layout), index_(Dims::filled(layout.shape.size(), 0)) {}

  void seek(std::int64_t position) {
    offsets_.fill(0);
    for (int d = index_.size() - 1; d >= 0; --d) {
      index_[d] = position % layout_.shape[d];
      position /= layout_.shape[d];
      move(d, index_[d]);
    }
  }
  /// Moves on, at most to the end of the row.
  void advance(std::int64_t steps) {
    for (int d = index_.size() - 1; d >= 0; --d, steps = 1) {
      move(d, steps);
      index_[d] += steps;
      if (index_[d] < layout_.shape[d]) return;
      move(d, -index_[d]);
      index_[d] = 0;
    }
  }
  void next() { advance(1); }
  const Dims& index() const { return index_; }
  const Offsets<N>& offsets() const { return offsets_; }

 private:
  void move(int dim, std::int64_t steps) {
    for (int v = 0; v < N; ++v) offsets_[static_cast<std::size_t>(v)] += steps * layout_[v][dim];
  }
  const Layout<N>& layout_;
  Dims index_;
  Offsets<N> offsets_{};
};

/// Calls f(position, length, offsets) for the stretches of the last dimension that make up the
/// row-major positions [begin, end), none longer than `longest`.
template <int N, class F>
void for_each_run(const Layout<N>& layout, std::int64_t begin, std::int64_t end,
                  std::int64_t longest, F f) {
  const std::int64_t row = layout.shape.back();
  Odometer<N> start(layout);
  if (begin < end) start.seek(begin);
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t length = std::min({longest, end - position, row - start.index().back()});
    f(position, length, start.offsets());
    position += length;
    start.advance(length);
  }
}

/// The bytes that lie `elements` elements behind the start of a view.
inline char* at(const View& v, std::int64_t elements) {
  return static_cast<char*>(v.data) + elements * static_cast<std::int64_t>(size_of(v.dtype));
}

}  // namespace quipu::detail::on_cpu
