// The views of a tensor. A view shares its parent's storage; in backward its gradient is a part of
// the parent's, so the rules below run only where that is not possible (a hook on the view, or
// strides that do not allow it).
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/core/tensor.h"
#include "quipu/ops/index/pick_support.h"
#include "quipu/ops/rearrange.h"

namespace quipu {
using namespace detail;
namespace {

Tensor on_storage_of(const Tensor& x, std::int64_t offset, const Shape& shape,
                     const Strides& strides) {
  return Tensor(Ref<Storage>(&x.storage()), offset, shape, strides, x.dtype());
}

/// Strides under which the elements of (shape, strides) read in order as `target`; none where a
/// copy is needed.
std::optional<Strides> strides_as(const Shape& shape, const Strides& strides, const Shape& target) {
  if (numel(shape) == 0) return contiguous_strides(target);
  Shape sizes;
  Strides steps;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    sizes.push_back(shape[d]);
    steps.push_back(strides[d]);
  }
  Strides result = Dims::filled(target.size(), 1);
  int t = target.size() - 1;
  for (int d = sizes.size() - 1; d >= 0; --d) {
    // Dimensions that step evenly are one run, which the target may cut anew.
    std::int64_t step = steps[d], run = sizes[d];
    for (; d > 0 && steps[d - 1] == step * run; --d) run *= sizes[d - 1];
    for (; run > 1 && t >= 0 && run % target[t] == 0; --t) {
      result[t] = step;
      step *= target[t];
      run /= target[t];
    }
    if (run != 1) return {};
  }
  return result;
}

Tensor reshaped(const Tensor& x, const Shape& shape) {
  const std::optional<Strides> strides = strides_as(x.shape(), x.strides(), shape);
  return strides ? on_storage_of(x, x.offset(), shape, *strides) : Tensor();
}

struct ReshapeRule {
  Shape from, to;
  Tensor project(const Tensor& g) const { return reshaped(g, to); }
  bool covers_parent() const { return true; }
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor same = reshaped(d_o, from);
    same.defined() ? d.pass(0, same) : d.give(0, d_o.reshape(from));
  }
};

/// The shape with its -1 filled in; throws where sizes do not match.
Shape complete(const Tensor& x, Shape shape) {
  const Shape asked = shape;
  int open = -1;
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] != -1) continue;
    check(open < 0, "shape ", asked, " has more than one -1");
    open = d;
    shape[d] = 1;
  }
  const std::int64_t known = numel(shape);
  if (open >= 0 && known > 0) shape[open] = x.numel() / known;
  check(open < 0 || known > 0, "shape ", asked,
        " leaves -1 open: any size fits beside a size of 0");
  check(numel(shape) == x.numel(), "shape ", asked, " does not fit the ", x.numel(),
        " elements of ", x.shape());
  return shape;
}

Tensor record_reshape(const Tensor& x, const Tensor& view) {
  return tie(view, {x}, ReshapeRule{x.shape(), view.shape()});
}

Tensor permuted(const Tensor& x, const Dims& order) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  for (int d = 0; d < order.size(); ++d) {
    shape[d] = x.shape()[static_cast<int>(order[d])];
    strides[d] = x.strides()[static_cast<int>(order[d])];
  }
  return on_storage_of(x, x.offset(), shape, strides);
}

struct PermuteRule {
  Dims order;
  Tensor project(const Tensor& g) const { return permuted(g, order); }
  bool covers_parent() const { return true; }
  void backward(const Tensor& d_o, Grads& d) const {
    Dims inverse = order;
    for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
    d.pass(0, permuted(d_o, inverse));
  }
};

/// Every `step`-th of `size` entries of a dimension from `start` on; `drop`: the dimension itself
/// goes.
struct PartRule {
  int dim;
  std::int64_t start, size, step;
  bool drop;
  Tensor project(const Tensor& g) const {
    Shape shape = g.shape();
    Strides strides = g.strides();
    const std::int64_t offset = size > 0 ? g.offset() + start * strides[dim] : g.offset();
    shape[dim] = size;
    strides[dim] *= step;
    if (drop) {
      shape.erase(dim);
      strides.erase(dim);
    }
    return on_storage_of(g, offset, shape, strides);
  }
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!g.add) fill_kernel(g.view, 0);
      View part = g.view;
      part.shape[dim] = size;
      part.strides[dim] *= step;
      if (size > 0 && part.data) {
        part.data = g.view.as<char>() +
                    start * g.view.stride(dim) * static_cast<std::int64_t>(size_of(g.view.dtype));
      }
      add_into_kernel(Grad::add_to(part), drop ? with_dropped_dim(d_o) : d_o);
    });
  }
  Tensor with_dropped_dim(const Tensor& d_o) const {
    Shape shape = d_o.shape();
    Strides strides = d_o.strides();
    shape.insert(dim, 1);
    strides.insert(dim, 1);
    return on_storage_of(d_o, d_o.offset(), shape, strides);
  }
};

struct ExpandRule {
  void backward(const Tensor& d_o, Grads& d) const { d.add(0, d_o); }
};

void check_position(std::int64_t index, const Shape& shape, int dim) {
  check(index >= -shape[dim] && index < shape[dim], "index ", index,
        " is out of range for dimension ", dim, " of shape ", shape);
}

/// Positions of a dimension as Python's slices have them: the first, how many, and the step, which
/// may be negative.
struct Range {
  Range(std::int64_t start, const std::optional<std::int64_t>& stop, std::int64_t step,
        std::int64_t size)
      : step(step) {
    check(step != 0, "the step is 0");
    const std::int64_t before = step < 0 ? -1 : 0;  // where a range may end, going backwards
    const auto position = [&](std::int64_t i) {
      return std::clamp(i < 0 ? i + size : i, before, size + before);
    };
    first = position(start);
    const std::int64_t end = stop ? position(*stop) : step < 0 ? -1 : size;
    const std::int64_t span = step < 0 ? first - end : end - first;
    // -step overflows for the lowest number alone, of which there is no multiple in the range.
    const std::int64_t by = step < 0 ? -std::max(step, -(std::int64_t{1} << 62)) : step;
    count = span <= 0 ? 0 : (span - 1) / by + 1;
  }
  std::int64_t first, count, step;
};

/// The diagonal of two dimensions, which comes last.
struct DiagonalRule {
  int first, second;
  std::int64_t offset, count;
  View part(View v) const {
    if (count > 0 && v.data) {
      const std::int64_t start = offset < 0 ? -offset * v.stride(first) : offset * v.stride(second);
      v.data = static_cast<char*>(v.data) + start * static_cast<std::int64_t>(size_of(v.dtype));
    }
    const std::int64_t step = v.stride(first) + v.stride(second);
    for (const int d : {std::max(first, second), std::min(first, second)}) {
      v.shape.erase(d);
      v.strides.erase(d);
    }
    v.shape.push_back(count);
    v.strides.push_back(step);
    return v;
  }
  Tensor project(const Tensor& g) const {
    const View v = part(g.view());
    const std::int64_t start = count == 0   ? 0
                               : offset < 0 ? -offset * g.strides()[first]
                                            : offset * g.strides()[second];
    return on_storage_of(g, g.offset() + start, v.shape, v.strides);
  }
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (!g.add) fill_kernel(g.view, 0);
      add_into_kernel(Grad::add_to(part(g.view)), d_o);
    });
  }
};

}  // namespace

Tensor Tensor::view(const Shape& shape) const {
  const OpScope op("view");
  const Tensor v = reshaped(*this, complete(*this, shape));
  check(v.defined(), "a tensor ", this->shape(), " with strides ", strides(), " cannot be seen as ",
        shape, " without a copy; use reshape()");
  return record_reshape(*this, v);
}

Tensor Tensor::reshape(const Shape& shape) const {
  const OpScope op("reshape");
  const Shape full = complete(*this, shape);
  const Tensor v = reshaped(*this, full);
  if (v.defined()) return record_reshape(*this, v);
  const Tensor dense = contiguous();
  return record_reshape(dense, reshaped(dense, full));
}

Tensor Tensor::permute(const Dims& order) const {
  const OpScope op("permute");
  check(order.size() == dim(), "order ", order, " does not name each of the ", dim(),
        " dimensions of ", shape());
  Dims wrapped = order;
  for (int d = 0; d < order.size(); ++d) wrapped[d] = wrap_dim(order[d], dim());
  if (dim() > 0) static_cast<void>(Axes(wrapped).resolve(dim()));  // throws when one is named twice
  return tie(permuted(*this, wrapped), {*this}, PermuteRule{wrapped});
}

Tensor Tensor::transpose(int a, int b) const {
  const OpScope op("transpose");
  Dims order = Dims::filled(dim(), 0);
  for (int d = 0; d < dim(); ++d) order[d] = d;
  std::swap(order[wrap_dim(a, dim())], order[wrap_dim(b, dim())]);
  return tie(permuted(*this, order), {*this}, PermuteRule{order});
}

Tensor Tensor::t() const {
  const OpScope op("t");
  check(dim() >= 2, "the tensor has shape ", shape(), ", but at least two dimensions are needed");
  return transpose(-2, -1);
}

Tensor Tensor::slice(int dim, std::int64_t start, std::optional<std::int64_t> stop,
                     std::int64_t step) const {
  const OpScope op("slice");
  const int d = wrap_dim(dim, this->dim());
  const Range range(start, stop, step, shape()[d]);
  const std::int64_t count = range.count;
  // The step of a single entry does not matter, but a huge one must not overflow.
  const std::int64_t by = count > 1 ? std::abs(step) : 1;
  const std::int64_t lowest =
      step < 0 ? range.first - std::max<std::int64_t>(count - 1, 0) * by : range.first;
  const PartRule part{d, count > 0 ? lowest : 0, count, by, false};
  const Tensor view = tie(part.project(*this), {*this}, part);
  return step < 0 ? flip(view, d) : view;
}

Tensor Tensor::diagonal(std::int64_t offset, int first, int second) const {
  const OpScope op("diagonal");
  const int a = wrap_dim(first, dim()), b = wrap_dim(second, dim());
  check(a != b, "both dimensions are ", first);
  const std::int64_t rows = shape()[a], columns = shape()[b];
  const std::int64_t low = offset < 0 ? std::max(offset, -rows) : 0,
                     high = offset > 0 ? std::min(offset, columns) : 0;
  const std::int64_t count = std::min(rows + low, columns - high);
  const DiagonalRule rule{a, b, low + high, count};
  return tie(rule.project(*this), {*this}, rule);
}

Tensor Tensor::select(int dim, std::int64_t index) const {
  const OpScope op("select");
  check(this->dim() > 0, "a tensor without dimensions has nothing to select from");
  const int d = wrap_dim(dim, this->dim());
  check_position(index, shape(), d);
  const PartRule part{d, index < 0 ? index + shape()[d] : index, 1, 1, true};
  return tie(part.project(*this), {*this}, part);
}

Tensor Tensor::unsqueeze(int dim) const {
  const OpScope op("unsqueeze");
  const int d = wrap_dim(dim, this->dim() + 1);
  Shape shape = this->shape();
  Strides strides = this->strides();
  strides.insert(d, d < shape.size() ? strides[d] * shape[d] : 1);
  shape.insert(d, 1);
  return record_reshape(*this, on_storage_of(*this, offset(), shape, strides));
}

Tensor Tensor::squeeze(int dim) const {
  const OpScope op("squeeze");
  if (this->dim() == 0 && (dim == 0 || dim == -1)) return *this;
  const int d = wrap_dim(dim, this->dim());
  if (this->shape()[d] != 1) return *this;
  Shape shape = this->shape();
  Strides strides = this->strides();
  shape.erase(d);
  strides.erase(d);
  return record_reshape(*this, on_storage_of(*this, offset(), shape, strides));
}

Tensor Tensor::squeeze() const {
  const OpScope op("squeeze");
  Shape shape;
  Strides strides;
  for (int d = 0; d < dim(); ++d) {
    if (this->shape()[d] == 1) continue;
    shape.push_back(this->shape()[d]);
    strides.push_back(this->strides()[d]);
  }
  return record_reshape(*this, on_storage_of(*this, offset(), shape, strides));
}

Tensor Tensor::expand(const Shape& shape) const {
  const OpScope op("expand");
  Shape full = shape;
  const int lead = shape.size() - dim();
  check(lead >= 0, "shape ", shape, " has fewer dimensions than ", this->shape());
  for (int d = 0; d < shape.size(); ++d) {
    if (shape[d] != -1) continue;
    check(d >= lead, "shape ", shape, " has a -1 for a new dimension");
    full[d] = this->shape()[d - lead];
  }
  check(can_broadcast(this->shape(), full), "shape ", this->shape(), " does not expand to ", full,
        ": only sizes of 1 can grow");
  static_cast<void>(quipu::numel(full));  // throws when it is too large
  return tie(
      on_storage_of(*this, offset(), full, broadcast_strides(this->shape(), strides(), full)),
      {*this}, ExpandRule{});
}

Tensor Tensor::index(const std::vector<Index>& indices) const {
  const OpScope op("index");
  using enum Index::Kind;
  int named = 0, rests = 0;
  for (const Index& i : indices) {
    named += i.kind == tensor ? dims_named(i.tensor) : i.kind != new_axis && i.kind != rest;
    rests += i.kind == rest;
  }
  check(rests <= 1, "`rest` may stand only once in an index");
  check(named <= dim(), named, " dimensions are indexed, but the tensor has shape ", shape());
  Tensor x = *this;
  std::vector<Picked> picked;
  int d = 0;        // of x
  int dropped = 0;  // dimension d of x is d + dropped of this tensor, which errors are about
  for (const Index& i : indices) {
    switch (i.kind) {
      case at:
        check_position(i.start, shape(), d + dropped++);
        x = x.select(d, i.start);
        break;
      case range: x = x.slice(d++, i.start, i.stop, i.step); break;
      case all: ++d; break;
      case new_axis:
        x = x.unsqueeze(d++);
        --dropped;
        break;
      case rest: d += dim() - named; break;
      case tensor: d += pick(picked, i.tensor, x.shape(), d); break;
    }
  }
  return picked.empty() ? x : index_by_tensors(x, picked);
}

}  // namespace quipu
