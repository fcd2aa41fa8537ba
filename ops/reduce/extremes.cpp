// max, min and where they stand.
#include <optional>

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/kernels.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

enum class Side { largest, smallest };

/// What a caller wants to know.
struct Wanted {
  bool values, index;
};
constexpr Wanted values_only{true, false}, index_only{false, true}, both{true, true};

/// The one dimension that is reduced, if it is one.
std::optional<int> single_axis(const Reduction& over) {
  std::optional<int> axis;
  for (int d = 0; d < over.kept.size(); ++d) {
    if (!over.reduced[static_cast<std::size_t>(d)]) continue;
    if (axis) return {};
    axis = d;
  }
  return axis;
}

/// A contiguous view as lines of one entry.
View one_a_line(View view) {
  view.shape = {view.numel(), 1};
  view.strides = {1, 1};
  return view;
}

/// All of the gradient goes to the entry that was chosen. Over several dimensions the index counts
/// them in row-major order.
struct ExtremeRule {
  Saved index;
  Reduction over;

  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (const std::optional<int> axis = single_axis(over)) {
        if (!g.add) fill_kernel(g.view, 0);
        return scatter_add_kernel(g.view, over.keep(index.get()), over.keep(d_o), *axis);
      }
      if (numel(over.kept) == 1 && g.view.is_contiguous()) {
        View whole = g.view;
        whole.shape = {1, over.count};
        whole.strides = {over.count, 1};
        if (!g.add) fill_kernel(whole, 0);
        return scatter_add_kernel(whole, one_a_line(index), one_a_line(d_o), 1);
      }
      const Tensor rows = workspace({numel(over.kept), over.count}, g.view.dtype, g.view.device);
      fill_kernel(rows, 0);
      scatter_add_kernel(rows, one_a_line(index), one_a_line(dense(d_o)), 1);
      add_into_kernel(g, seen_as_before(rows));
    });
  }
  /// Lines of reduced entries, as the tensor that they came from.
  View seen_as_before(const Tensor& rows) const {
    const Dims order = over.reduced_last();
    View view = rows;
    view.shape = over.kept;
    view.strides = over.kept;
    std::int64_t stride = 1;
    for (int i = order.size(); i-- > 0;) {
      const auto d = static_cast<int>(order[i]);
      view.shape[d] = over.whole[d];
      view.strides[d] = stride;
      stride *= over.whole[d];
    }
    return view;
  }
};

Extremes extremes(const Tensor& x, const Axes& axes, bool keepdim, Side side, Wanted wanted) {
  const Reduction over(x.shape(), axes, keepdim);
  const bool largest = side == Side::largest;
  check(over.count > 0 || numel(over.kept) == 0, "x has shape ", x.shape(), ", so there is no ",
        largest ? "largest" : "smallest", " entry");
  if (recording() && x.requires_grad()) wanted.index = true;
  const Tensor values = wanted.values ? empty(over.result, x.dtype(), x.device()) : Tensor();
  const Tensor index = wanted.index ? empty(over.result, i64, x.device()) : Tensor();
  if (const std::optional<int> axis = single_axis(over)) {
    extreme_kernel(x, wanted.values ? over.keep(values) : View(),
                   wanted.index ? over.keep(index) : View(), *axis, largest);
  } else {
    extreme_kernel(with_reduced_last(x, over), wanted.values ? one_a_line(values) : View(),
                   wanted.index ? one_a_line(index) : View(), 1, largest);
  }
  if (!wanted.values) return {values, no_gradient(index)};
  return {tie(values, {x}, ExtremeRule{save_if(x.requires_grad(), index), over}), index};
}

/// Where the last of equal entries stands: the first one from behind.
Tensor last_of(const Tensor& x, const Axes& axes, bool keepdim, Side side) {
  const Reduction over(x.shape(), axes, keepdim);
  check(over.count > 0 || numel(over.kept) == 0, "x has shape ", x.shape(),
        ", so there is no entry");
  const Tensor index = empty(over.result, i64, x.device());
  if (index.numel() == 0) return index;
  const Tensor lines = with_reduced_last(x, over);
  View rows = lines;
  rows.data = static_cast<char*>(rows.data) +
              (over.count - 1) * static_cast<std::int64_t>(size_of(rows.dtype));
  rows.strides[1] = -1;
  extreme_kernel(rows, View(), one_a_line(index), 1, side == Side::largest);
  pointwise_kernel(Target::write_to(index), Pointwise::sub, {Scalar(over.count - 1), index});
  return no_gradient(index);
}

Tensor place_of(const Tensor& x, const Axes& axes, bool keepdim, Ties ties, Side side) {
  check_enum("ties", ties, Ties::last);
  if (ties == Ties::last) return last_of(x, axes, keepdim, side);
  return extremes(x, axes, keepdim, side, index_only).index;
}

}  // namespace

Tensor max(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("max");
  return extremes(x, axes, keepdim, Side::largest, values_only).values;
}

Tensor min(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("min");
  return extremes(x, axes, keepdim, Side::smallest, values_only).values;
}

Tensor argmax(const Tensor& x, const Axes& axes, bool keepdim, Ties ties) {
  const OpScope op("argmax");
  return place_of(x, axes, keepdim, ties, Side::largest);
}

Tensor argmin(const Tensor& x, const Axes& axes, bool keepdim, Ties ties) {
  const OpScope op("argmin");
  return place_of(x, axes, keepdim, ties, Side::smallest);
}

Extremes max_with_index(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("max_with_index");
  return extremes(x, axes, keepdim, Side::largest, both);
}

Extremes min_with_index(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("min_with_index");
  return extremes(x, axes, keepdim, Side::smallest, both);
}

}  // namespace quipu
