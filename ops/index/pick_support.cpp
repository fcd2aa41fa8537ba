// Indexing by tensors, made of smaller operators: positions along one dimension are an
// index_select; those along several become positions in one that is all of them.
#include "quipu/ops/index/pick_support.h"

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/find.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"

namespace quipu {
using namespace detail;
namespace {

/// Positions from the front; those out of range stay so.
Tensor from_front(const Tensor& positions, std::int64_t size) {
  const Tensor whole = positions.to(i64);
  return where(whole < 0, whole + size, whole);
}

Shape broadcast_of(const std::vector<Picked>& picked) {
  Shape shape;
  for (const Picked& p : picked) shape = broadcast_shapes(shape, p.positions.shape());
  return shape;
}

/// x with the picked dimensions in front, as one.
Tensor merged_in_front(const Tensor& x, const std::vector<Picked>& picked) {
  Dims order;
  Shape shape{1};
  for (const Picked& p : picked) {
    order.push_back(p.dim);
    shape[0] *= x.size(p.dim);
  }
  for (int d = 0; d < x.dim(); ++d) {
    bool moved = false;
    for (const Picked& p : picked) moved |= p.dim == d;
    if (moved) continue;
    order.push_back(d);
    shape.push_back(x.size(d));
  }
  return x.permute(order).reshape(shape);
}

/// Positions in the merged dimension. An index out of range is found by a look into a list as long
/// as its own dimension.
Tensor merged_positions(const Tensor& x, const std::vector<Picked>& picked, const Shape& shape) {
  Tensor merged;
  for (const Picked& p : picked) {
    const std::int64_t size = x.size(p.dim);
    const Tensor wrapped = from_front(p.positions, size);
    const Tensor checked =
        index_select(arange(size, i64, x.device()), 0, wrapped.flatten()).reshape(wrapped.shape());
    merged = merged.defined() ? merged * size + checked : checked;
  }
  return merged.expand(shape);
}

/// The first `n` dimensions of x moved to `to`.
Tensor moved_from_front(const Tensor& x, int n, int to) {
  Dims order;
  for (int d = n; d < n + to; ++d) order.push_back(d);
  for (int d = 0; d < n; ++d) order.push_back(d);
  for (int d = n + to; d < x.dim(); ++d) order.push_back(d);
  return x.permute(order);
}

bool side_by_side(const std::vector<Picked>& picked) {
  for (std::size_t i = 1; i < picked.size(); ++i) {
    if (picked[i].dim != picked[i - 1].dim + 1) return false;
  }
  return true;
}

/// Where entries of a dense tensor of this shape stand that x(indices) names.
Tensor named_positions(const Tensor& x, const std::vector<Index>& indices) {
  return arange(x.numel(), i64, x.device()).view(x.shape()).index(indices);
}

/// A copy of x with x(indices) = values, or += values. Nothing of it is recorded; whether x may be
/// changed in place is the caller's question.
Tensor with_entries(const Tensor& x, const std::vector<Index>& indices, const Tensor& values,
                    bool accumulate) {
  const NoGrad no_grad;
  const Tensor places = named_positions(x, indices);
  check(can_broadcast(values.shape(), places.shape()), "values has shape ", values.shape(),
        ", which does not broadcast to the shape ", places.shape(), " of what is changed");
  const Tensor flat = x.detach().contiguous().flatten(), to = places.flatten();
  const Tensor from = values.expand(places.shape()).flatten();
  const Tensor changed = accumulate ? scatter_add(flat, 0, to, from) : scatter(flat, 0, to, from);
  return changed.view(x.shape());
}

}  // namespace

int detail::dims_named(const Tensor& index) {
  return index.dtype() == boolean ? index.dim() : 1;
}

int detail::pick(std::vector<Picked>& picked, const Tensor& index, const Shape& shape, int dim) {
  if (index.dtype() != boolean) {
    check_index("the index", index);
    picked.push_back({index, dim});
    return 1;
  }
  check(index.dim() > 0, "a mask without dimensions picks nothing; use a bool of the program's");
  for (int d = 0; d < index.dim(); ++d) {
    check(index.size(d) == shape[dim + d], "the mask has shape ", index.shape(),
          ", but the tensor has size ", shape[dim + d], " in dimension ", dim + d);
  }
  const Tensor places = nonzero(index);
  for (int d = 0; d < index.dim(); ++d) picked.push_back({places.select(1, d), dim + d});
  return index.dim();
}

Tensor detail::index_by_tensors(const Tensor& x, const std::vector<Picked>& picked) {
  for (const Picked& p : picked) check_same_device("the tensor", x, "the index", p.positions);
  const Shape shape = broadcast_of(picked);
  const int first = picked.front().dim;
  const bool single = picked.size() == 1;
  const Tensor source = single ? x : merged_in_front(x, picked);
  const Tensor positions = single ? from_front(picked.front().positions, x.size(first))
                                  : merged_positions(x, picked, shape);
  const int axis = single ? first : 0;
  const Tensor rows = index_select(source, axis, positions.flatten());
  Shape whole = rows.shape();
  whole.erase(axis);
  for (int d = 0; d < shape.size(); ++d) whole.insert(axis + d, shape[d]);
  const Tensor o = rows.reshape(whole);
  return single || !side_by_side(picked) || first == 0 ? o
                                                       : moved_from_front(o, shape.size(), first);
}

const Tensor& Tensor::index_put_(const std::vector<Index>& indices, const Tensor& values,
                                 bool accumulate) const {
  const OpScope op("index_put_");
  check(values.dtype() == dtype(), "values are ", values.dtype(),
        ", but the tensor that is changed is ", dtype(), "; convert them with .to(", dtype(), ")");
  check(!accumulate || dtype() != boolean,
        "bools cannot be added to; convert the tensor with .to(i64)");
  check(!(taping() && values.requires_grad()),
        "values wants a gradient, but changes in place are not recorded; use the operator that "
        "returns a new tensor, or detach() it");
  return copy_from(with_entries(*this, indices, values.detach(), accumulate));
}

}  // namespace quipu
