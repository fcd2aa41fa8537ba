#pragma once
// How kernels that work along one axis are cut: into groups of neighbouring lines. Where the axis
// itself lies densest in memory, a group is one line; else it is a tile of lines side by side, so
// that memory is read in long stretches. Short lines go side by side, too: one by one, each would
// cost more to find than to work on.
#include <cstdlib>

#include "layout.h"

namespace quipu::detail::on_cpu {

inline constexpr std::int64_t short_line = 32;

template <int N>
class AxisPlan {
 public:
  struct Group {
    Offsets<N> offsets;  // where its first line starts in each view
    std::int64_t width;  // number of lines
  };

  /// Cuts by the shape and strides of the first view; the others have its shape but for the axis,
  /// or are not defined.
  AxisPlan(const std::array<const View*, static_cast<std::size_t>(N)>& views, int axis,
           std::int64_t widest)
      : length(views[0]->size(axis)), widest_(widest) {
    outer_.shape = views[0]->shape;
    for (int v = 0; v < N; ++v) {
      const View& view = *views[static_cast<std::size_t>(v)];
      outer_[v] = view.defined ? view.strides : Dims::filled(outer_.shape.size(), 0);
      axis_stride[static_cast<std::size_t>(v)] = outer_[v][axis];
    }
    const int column = column_dim(axis);
    if (column >= 0) {
      columns_ = outer_.shape[column];
      for (int v = 0; v < N; ++v) column_stride[static_cast<std::size_t>(v)] = outer_[v][column];
      remove(std::max(axis, column));
    }
    remove(column >= 0 ? std::min(axis, column) : axis);
    outer_.shape.push_back((columns_ + widest - 1) / widest);
    for (int v = 0; v < N; ++v)
      outer_[v].push_back(column_stride[static_cast<std::size_t>(v)] * widest);
  }

  std::int64_t groups() const { return quipu::numel(outer_.shape); }
  bool softmax_over_sequence() const { return columns_ > 1; }

  /// Calls f(group) for the groups [begin, end).
  template <class F>
  void each(std::int64_t begin, std::int64_t end, F f) const {
    Odometer<N> start(outer_);
    if (begin < end) start.seek(begin);
    for (std::int64_t g = begin; g < end; ++g, start.next()) {
      f(Group{start.offsets(), std::min(widest_, columns_ - start.index().back() * widest_)});
    }
  }

  /// Calls f(groups, count) for up to `few` of them at a time.
  template <int few, class F>
  void each_few(std::int64_t begin, std::int64_t end, F f) const {
    std::array<Group, few> waiting;
    int count = 0;
    each(begin, end, [&](const Group& group) {
      waiting[static_cast<std::size_t>(count)] = group;
      if (++count < few) return;
      f(waiting.data(), count);
      count = 0;
    });
    if (count > 0) f(waiting.data(), count);
  }

  std::int64_t length;  // of the axis, in the first view
  Offsets<N> axis_stride{};
  Offsets<N> column_stride{};

 private:
  /// The dimension besides the axis that lies densest in memory; -1 where lines are better taken
  /// one by one.
  int column_dim(int axis) const {
    int best = -1;
    for (int d = 0; d < outer_.shape.size(); ++d) {
      if (d == axis || outer_.shape[d] <= 1) continue;
      if (best < 0 || std::abs(outer_[0][d]) <= std::abs(outer_[0][best])) best = d;
    }
    if (best < 0 || std::abs(outer_[0][best]) < std::abs(outer_[0][axis])) return best;
    return length <= short_line && outer_.shape[best] > length ? best : -1;
  }
  void remove(int dim) {
    outer_.shape.erase(dim);
    for (int v = 0; v < N; ++v) outer_[v].erase(dim);
  }

  Layout<N> outer_;  // one position a group; the last dimension counts tiles of columns
  std::int64_t columns_ = 1;
  std::int64_t widest_;
};

}  // namespace quipu::detail::on_cpu
