// scatter. To overwrite, each place gets the largest number of an entry that names it, which is the
// last, and then that entry.
#include <utility>

#include "quipu/autograd/knot.h"
#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/index/support.h"
#include "quipu/ops/pointwise/support.h"

namespace quipu {
using namespace detail;
namespace {

/// The number of each entry of a shape, in row-major order.
Tensor entry_numbers(const Shape& shape, Device device) {
  const Tensor numbers = workspace(shape, i64, device);
  View flat = numbers;
  flat.shape = {numbers.numel()};
  flat.strides = {1};
  ramp_kernel(flat, 0, 1);
  return numbers;
}

/// Of each place the number of the last entry that names it; -1 where none does.
Tensor winners(const View& index, const Shape& places, int axis) {
  const Tensor winner = workspace(places, i64, index.device);
  fill_kernel(winner, -1);
  scatter_join_kernel(winner, index, entry_numbers(index.shape, index.device), axis, Join::max);
  return winner;
}
Tensor is_named(const Tensor& winner) {
  const Tensor named = workspace(winner.shape(), boolean, winner.device());
  pointwise_kernel(Target::write_to(named), Pointwise::ge, {winner, 0});
  return named;
}

View as_one_line(View v) {
  v.shape = {v.numel()};
  v.strides = {1};
  return v;
}

void overwrite(const Tensor& o, const View& index, const Tensor& source, int axis) {
  if (source.numel() == 0) return;
  const Tensor winner = winners(index, o.shape(), axis), named = is_named(winner);
  pointwise_kernel(Target::write_to(winner), Pointwise::maximum, {winner, 0});
  const Tensor values = workspace(o.shape(), o.dtype(), o.device());
  index_select_kernel(as_one_line(dense(source)), as_one_line(winner), as_one_line(values), 0);
  pointwise_kernel(Target::write_to(o), Pointwise::where, {named, values, o});
}

/// What was overwritten gets nothing, and what was not written either.
struct OverwriteRule {
  Saved index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor winner = winners(index, d_o.shape(), axis);
    d.with(0, [&](const Grad& g) {
      pointwise_kernel(g, Pointwise::where_second, {is_named(winner), d_o});
    });
    d.with(1, [&](const Grad& g) {
      const Shape& shape = index.get().shape();
      const Tensor found = workspace(shape, d_o.dtype(), d_o.device());
      gather_kernel(d_o, index, Target::write_to(found), axis);
      const Tensor number = workspace(shape, i64, d_o.device());
      gather_kernel(winner, index, Target::write_to(number), axis);
      const Tensor last = workspace(shape, boolean, d_o.device());
      pointwise_kernel(Target::write_to(last), Pointwise::eq,
                       {number, entry_numbers(shape, d_o.device())});
      pointwise_kernel(g, Pointwise::where_first, {last, found});
    });
  }
};

/// The gradient goes to x where the result is x, else to the first entry that is the result.
struct ExtremeRule {
  Saved x, source, index, o;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    const Tensor from_x = equal(x.get(), o.get());
    d.with(0, [&](const Grad& g) { pointwise_kernel(g, Pointwise::where_first, {from_x, d_o}); });
    d.with(1, [&](const Grad& g) {
      const Shape& shape = index.get().shape();
      const Tensor won = workspace(shape, o.get().dtype(), d_o.device());
      gather_kernel(o, index, Target::write_to(won), axis);
      const Tensor is_result = equal(source.get(), won);
      // The lowest number among them; those that are not it have one that is too large.
      const std::int64_t none = numel(shape);
      const Tensor numbers = entry_numbers(shape, d_o.device());
      const Tensor candidates = workspace(shape, i64, d_o.device());
      pointwise_kernel(Target::write_to(candidates), Pointwise::where,
                       {is_result, numbers, Scalar(none)});
      const Tensor first = workspace(d_o.shape(), i64, d_o.device());
      fill_kernel(first, none);
      scatter_join_kernel(first, index, candidates, axis, Join::min);
      pointwise_kernel(Target::write_to(first), Pointwise::where, {from_x, Scalar(none), first});
      const Tensor found = workspace(shape, i64, d_o.device());
      gather_kernel(first, index, Target::write_to(found), axis);
      const Tensor chosen = workspace(shape, boolean, d_o.device());
      pointwise_kernel(Target::write_to(chosen), Pointwise::eq, {found, numbers});
      const Tensor gradient = workspace(shape, d_o.dtype(), d_o.device());
      gather_kernel(d_o, index, Target::write_to(gradient), axis);
      pointwise_kernel(g, Pointwise::where_first, {chosen, gradient});
    });
  }
  /// Equal, or both NaN.
  static Tensor equal(const Tensor& a, const Tensor& b) {
    const Tensor same = workspace(a.shape(), boolean, a.device());
    const Tensor nans = workspace(a.shape(), boolean, a.device());
    const Tensor nan_of_b = workspace(a.shape(), boolean, a.device());
    pointwise_kernel(Target::write_to(nans), Pointwise::isnan, {a});
    pointwise_kernel(Target::write_to(nan_of_b), Pointwise::isnan, {b});
    pointwise_kernel(Target::write_to(nans), Pointwise::logical_and, {nans, nan_of_b});
    pointwise_kernel(Target::write_to(same), Pointwise::eq, {a, b});
    pointwise_kernel(Target::write_to(same), Pointwise::logical_or, {same, nans});
    return same;
  }
};

/// A factor's gradient is the product of all others: that of those which are not 0 by itself, if
/// no other one is 0.
struct ProductRule {
  Saved x, source, index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    const DType wide = compute_type(d_o.dtype());
    const Tensor x_zero = is_zero(x.get()), source_zero = is_zero(source.get());
    const Tensor product = without_zeros(x.get(), x_zero, wide);
    scatter_join_kernel(product, index, without_zeros(source.get(), source_zero, wide), axis,
                        Join::mul);
    const Tensor zeros_there = workspace(x.get().shape(), i64, d_o.device());
    copy_kernel(zeros_there, x_zero);
    const Tensor zero_counts = workspace(source.get().shape(), i64, d_o.device());
    copy_kernel(zero_counts, source_zero);
    scatter_add_kernel(zeros_there, index, zero_counts, axis);
    d.with(0, [&](const Grad& g) {
      others_into(g, d_o, product, zeros_there, x.get(), x_zero, wide);
    });
    d.with(1, [&](const Grad& g) {
      const auto named = [&](const Tensor& from) {
        const Tensor found = workspace(index.get().shape(), from.dtype(), from.device());
        gather_kernel(from, index, Target::write_to(found), axis);
        return found;
      };
      others_into(g, named(d_o), named(product), named(zeros_there), source.get(), source_zero,
                  wide);
    });
  }
  static Tensor is_zero(const Tensor& t) {
    const Tensor zero = workspace(t.shape(), boolean, t.device());
    pointwise_kernel(Target::write_to(zero), Pointwise::eq, {t, 0});
    return zero;
  }
  static Tensor without_zeros(const Tensor& t, const Tensor& zero, DType wide) {
    const Tensor o = workspace(t.shape(), wide, t.device());
    pointwise_kernel(Target::write_to(o), Pointwise::where, {zero, 1, t});
    return o;
  }
  /// g (=|+=) d_o times the product of all factors but t.
  static void others_into(const Grad& g, const Tensor& d_o, const Tensor& product,
                          const Tensor& zeros_there, const Tensor& t, const Tensor& zero,
                          DType wide) {
    const Tensor others = workspace(t.shape(), wide, t.device());
    const Tensor alone = workspace(t.shape(), boolean, t.device());
    pointwise_kernel(Target::write_to(others), Pointwise::div,
                     {product, without_zeros(t, zero, wide)});
    // As many zeros as t itself is.
    pointwise_kernel(Target::write_to(alone), Pointwise::eq, {zeros_there, zero});
    pointwise_kernel(Target::write_to(others), Pointwise::where, {alone, others, 0});
    pointwise_kernel(g, Pointwise::mul, {others, d_o});
  }
};

}  // namespace

Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
               ScatterMode mode) {
  const OpScope op("scatter");
  check_enum("mode", mode, ScatterMode::min);
  const int axis = check_scatter(x, dim, index, source);
  const Tensor o = empty(x.shape(), x.dtype(), x.device());
  copy_kernel(o, x);
  const bool wanted = x.requires_grad() || source.requires_grad();
  if (mode == ScatterMode::overwrite) {
    overwrite(o, index, source, axis);
    return tie(o, {x, source}, OverwriteRule{save_if(wanted, index), axis});
  }
  const Join join = mode == ScatterMode::mul   ? Join::mul
                    : mode == ScatterMode::max ? Join::max
                                               : Join::min;
  scatter_join_kernel(o, index, source, axis, join);
  Saved kept_x = save_if(wanted, x), kept_source = save_if(wanted, source),
        kept_index = save_if(wanted, index);
  if (mode == ScatterMode::mul) {
    return tie(o, {x, source},
               ProductRule{std::move(kept_x), std::move(kept_source), std::move(kept_index), axis});
  }
  return tie(o, {x, source},
             ExtremeRule{std::move(kept_x), std::move(kept_source), std::move(kept_index),
                         save_if(wanted, o), axis});
}

}  // namespace quipu
