// All but flip are made of views, joins and selections.
#include "quipu/ops/rearrange.h"

#include <algorithm>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/join.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu {
using namespace detail;
namespace {

/// v with a dimension in the opposite order.
View backwards(View v, int dim) {
  if (v.numel() == 0) return v;
  v.data = static_cast<char*>(v.data) +
           (v.size(dim) - 1) * v.stride(dim) * static_cast<std::int64_t>(size_of(v.dtype));
  v.strides[dim] = -v.strides[dim];
  return v;
}

struct FlipRule {
  Dims dims;
  View flipped(View v) const {
    for (const std::int64_t d : dims) v = backwards(v, static_cast<int>(d));
    return v;
  }
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) { add_into_kernel(g, flipped(d_o)); });
  }
};

Tensor flipped_copy(const Tensor& x, const Dims& dims) {
  const FlipRule rule{dims};
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  copy_kernel(o, rule.flipped(x));
  return tie(o, {x}, rule);
}

/// Entries on one side of a diagonal of the two last dimensions: at (row, column) where
/// column - row <= diagonal.
Tensor below_diagonal(const Tensor& x, std::int64_t diagonal) {
  check(x.dim() >= 2, "x has shape ", x.shape(), ", but at least two dimensions are needed");
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  diagonal = std::clamp(diagonal, -rows - 1, columns + 1);
  const Tensor row = arange(rows, i64, x.device()).unsqueeze(1);
  return le(arange(columns, i64, x.device()), add(row, diagonal));
}

/// Which entry stands at each place of a padded dimension.
Tensor source_positions(std::int64_t size, const PadWidth& width, PadMode mode, Device device) {
  const std::int64_t n = std::max<std::int64_t>(size + width.before + width.after, 0);
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(n));
  const std::int64_t period = std::max<std::int64_t>(2 * (size - 1), 1);
  for (std::int64_t i = -width.before; i < size + width.after; ++i) {
    const std::int64_t turned = ((i % period) + period) % period;
    positions.push_back(mode == PadMode::edge ? std::clamp<std::int64_t>(i, 0, size - 1)
                        : size == 1           ? 0
                                              : std::min(turned, period - turned));
  }
  return from(positions, {n}, i64, device);
}

Tensor padded(const Tensor& x, int dim, const PadWidth& width, PadMode mode, const Scalar& value) {
  const std::int64_t size = x.size(dim);
  check(size + width.before + width.after >= 0, "widths of ", width.before, " and ", width.after,
        " cut more from dimension ", dim, " than its ", size, " entries");
  if (mode != PadMode::constant) {
    if (width.before <= 0 && width.after <= 0) {
      return x.slice(dim, -width.before, size + width.after);
    }
    check(size > 0, "dimension ", dim, " has no entries to repeat");
    return index_select(x, dim, source_positions(size, width, mode, x.device()));
  }
  // What is cut off may be more than there is on one side, if the other one is added to.
  const std::int64_t first = std::min(std::max<std::int64_t>(-width.before, 0), size);
  const std::int64_t last = std::max(first, std::min(size + width.after, size));
  std::vector<Tensor> parts;
  const auto fill = [&](std::int64_t n) {
    if (n <= 0) return;
    Shape shape = x.shape();
    shape[dim] = n;
    parts.push_back(full(shape, value, x.dtype(), x.device()));
  };
  fill(std::min(width.before, size + width.before + width.after));
  parts.push_back(x.slice(dim, first, last));
  fill(std::min(width.after, size + width.before + width.after));
  return parts.size() == 1 ? parts[0] : cat(parts, dim);
}

}  // namespace

Tensor flip(const Tensor& x, const Axes& axes) {
  const OpScope op("flip");
  const auto flipped = axes.resolve(x.dim());
  Dims dims;
  for (int d = 0; d < x.dim(); ++d) {
    if (flipped[static_cast<std::size_t>(d)]) dims.push_back(d);
  }
  return flipped_copy(x, dims);
}

Tensor roll(const Tensor& x, std::int64_t shift, int dim) {
  const OpScope op("roll");
  if (x.dim() == 0) return roll(x.reshape({1}), shift, dim).reshape({});
  const int axis = wrap_dim(dim, x.dim());
  const std::int64_t size = x.size(axis);
  if (size == 0) return x.clone();
  const std::int64_t cut = ((-shift % size) + size) % size;  // the entry that comes first
  return cat({x.slice(axis, cut), x.slice(axis, 0, cut)}, axis);
}

Tensor repeat(const Tensor& x, const Dims& times) {
  const OpScope op("repeat");
  check(times.size() >= x.dim(), "times is ", times, ", but x has shape ", x.shape(),
        " (a number for each dimension is wanted)");
  for (const std::int64_t t : times) check(t >= 0, "times is ", times, ", with a number below 0");
  Tensor o = x;
  while (o.dim() < times.size()) o = o.unsqueeze(0);
  for (int d = 0; d < times.size(); ++d) {
    if (times[d] == 1) continue;
    const std::int64_t size = o.size(d);
    Shape whole = o.shape(), several = o.shape();
    whole[d] = times[d] * size;
    several[d] = times[d];
    several.insert(d + 1, size);
    o = o.unsqueeze(d).expand(several).reshape(whole);
  }
  return o.same_as(x) ? x.clone() : o;
}

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  const OpScope op("tril");
  return masked_fill(x, logical_not(below_diagonal(x, diagonal)), 0);
}

Tensor triu(const Tensor& x, std::int64_t diagonal) {
  const OpScope op("triu");
  return masked_fill(x, below_diagonal(x, std::max(diagonal, -x.size(-2)) - 1), 0);
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
  const OpScope op("one_hot");
  check_index("index", index);
  check(classes >= 0, "classes is ", classes);
  return eq(index.unsqueeze(-1), arange(classes, i64, index.device())).to(i64);
}

Tensor pad(const Tensor& x, const std::vector<PadWidth>& widths, PadMode mode,
           const Scalar& value) {
  const OpScope op("pad");
  check_enum("mode", mode, PadMode::edge);
  const int count = static_cast<int>(widths.size());
  check(count <= x.dim(), "there are ", count, " widths, but x has shape ", x.shape());
  Tensor o = x;
  for (int i = 0; i < count; ++i) {
    const PadWidth& width = widths[static_cast<std::size_t>(i)];
    if (width.before != 0 || width.after != 0) {
      o = padded(o, x.dim() - count + i, width, mode, value);
    }
  }
  return o;
}

}  // namespace quipu
