// Running sums by a kernel of their own. The rarer running products, recurrences and extremes are
// made by doubling (Hillis and Steele 1986, doi:10.1145/7902.7903): after step s an entry has what
// the last 2^s made of it, so a line of n takes log2(n) pointwise operators over all of it, on
// every device. Products are f64 (whole numbers: i64) until they are stored.
#include "quipu/ops/reduce/scan.h"

#include "quipu/core/dispatch/kernels.h"
#include "quipu/ops/index/gather_kernels.h"
#include "quipu/ops/pointwise/support.h"
#include "quipu/ops/reduce/kernels.h"
#include "quipu/ops/reduce/support.h"

namespace quipu {
using namespace detail;
namespace {

/// n entries of a dimension from `start` on, every `step`-th; the step may go backwards.
View part_of(View v, int axis, std::int64_t start, std::int64_t n, std::int64_t step = 1) {
  if (v.numel() > 0 && n > 0) {
    v.data = static_cast<char*>(v.data) +
             start * v.stride(axis) * static_cast<std::int64_t>(size_of(v.dtype));
  }
  v.shape[axis] = n;
  v.strides[axis] *= step;
  return v;
}
View in_order(const View& v, int axis, bool reverse) {
  return reverse ? part_of(v, axis, v.size(axis) - 1, v.size(axis), -1) : v;
}

/// A dense copy in workspace, of the type that products are made in.
Tensor wide_copy(const View& x) {
  const Tensor copy = workspace(x.shape, is_floating(x.dtype) ? f64 : i64, x.device);
  copy_kernel(copy, x);
  return copy;
}

/// o = f(a, b) of the entries from `distance` on and those `distance` before them.
void combine(const View& o, Pointwise f, const View& a, const View& b, int axis,
             std::int64_t distance) {
  const std::int64_t n = o.size(axis) - distance;
  pointwise_kernel(Target::write_to(part_of(o, axis, distance, n)), f,
                   {part_of(a, axis, distance, n), part_of(b, axis, 0, n)});
}

/// Running products of x along the axis.
Tensor products_of(const View& x, int axis) {
  Tensor p = wide_copy(x);
  if (p.numel() == 0) return p;
  Tensor q = workspace(p.shape(), p.dtype(), p.device());
  for (std::int64_t distance = 1; distance < x.size(axis); distance *= 2) {
    copy_kernel(part_of(q, axis, 0, distance), part_of(p, axis, 0, distance));
    combine(q, Pointwise::mul, p, p, axis, distance);
    std::swap(p, q);
  }
  return p;
}
/// The same without the entry itself: 1 for the first.
Tensor products_before(const View& x, int axis) {
  const Tensor o = workspace(x.shape, is_floating(x.dtype) ? f64 : i64, x.device);
  const std::int64_t n = x.size(axis);
  if (o.numel() == 0) return o;
  fill_kernel(part_of(o, axis, 0, 1), 1);
  if (n > 1) copy_kernel(part_of(o, axis, 1, n - 1), products_of(part_of(x, axis, 0, n - 1), axis));
  return o;
}

/// h_i = b_i + a_i h_(i-1), where h_-1 is 0: of a stretch of steps, a is the product and b what it
/// gives for 0.
Tensor recurrence(const View& a, const View& b, int axis) {
  Tensor factor = wide_copy(a), sum = wide_copy(b);
  Tensor next_factor = workspace(a.shape, f64, a.device),
         next_sum = workspace(a.shape, f64, a.device);
  const std::int64_t n = a.size(axis);
  for (std::int64_t distance = 1; distance < n; distance *= 2) {
    const std::int64_t rest = n - distance;
    copy_kernel(part_of(next_factor, axis, 0, distance), part_of(factor, axis, 0, distance));
    copy_kernel(part_of(next_sum, axis, 0, distance), part_of(sum, axis, 0, distance));
    combine(next_factor, Pointwise::mul, factor, factor, axis, distance);
    pointwise_kernel(Target::write_to(part_of(next_sum, axis, distance, rest)), Pointwise::fma,
                     {part_of(sum, axis, distance, rest), part_of(factor, axis, distance, rest),
                      part_of(sum, axis, 0, rest)});
    std::swap(factor, next_factor);
    std::swap(sum, next_sum);
  }
  return sum;
}

struct CumsumRule {
  int axis;
  bool reverse, exclusive;
  void backward(const Tensor& d_o, Grads& d) const;
};

/// `o` gets the running sum of x; exclusive ones are those of the entries before, shifted by one.
void sum_along(const View& x, const Target& o, int axis, bool reverse, bool exclusive) {
  if (!exclusive || o.view.numel() == 0) return cumsum_kernel(x, o, axis, reverse);
  const std::int64_t n = x.size(axis), first = reverse ? n - 1 : 0, from = reverse ? 1 : 0;
  if (!o.add) fill_kernel(part_of(o.view, axis, first, 1), 0);
  if (n == 1) return;
  cumsum_kernel(part_of(x, axis, from, n - 1),
                Target{part_of(o.view, axis, 1 - from, n - 1), o.add}, axis, reverse);
}

void CumsumRule::backward(const Tensor& d_o, Grads& d) const {
  d.with(0, [&](const Grad& g) { sum_along(d_o, g, axis, !reverse, exclusive); });
}

/// d_x_i = P_i R_i, where P_i is the product of what comes before i and R_i = d_o_i + x_(i+1)
/// R_(i+1): no quotient, so zeros do no harm. An exclusive product is an inclusive one of all but
/// the last, one entry later.
struct CumprodRule {
  Saved x;
  int axis;
  bool reverse, exclusive;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      std::int64_t n = d_o.size(axis);
      if (d_o.numel() == 0) return;
      View in = in_order(x, axis, reverse), up = in_order(d_o, axis, reverse),
           to = in_order(g.view, axis, reverse);
      if (exclusive) {
        if (!g.add) fill_kernel(part_of(to, axis, n - 1, 1), 0);
        if (--n == 0) return;
        in = part_of(in, axis, 0, n), up = part_of(up, axis, 1, n), to = part_of(to, axis, 0, n);
      }
      const Tensor before = products_before(in, axis);
      // From the far end, each step multiplies by the entry behind it; the first has none.
      const Tensor behind = workspace(in.shape, f64, in.device);
      fill_kernel(part_of(behind, axis, 0, 1), 0);
      if (n > 1) {
        copy_kernel(part_of(behind, axis, 1, n - 1),
                    part_of(in_order(in, axis, true), axis, 0, n - 1));
      }
      const Tensor sums = recurrence(behind, in_order(up, axis, true), axis);
      pointwise_kernel(Grad{to, g.add}, Pointwise::mul, {before, in_order(sums, axis, true)});
    });
  }
};

/// prod: the gradient of an entry is the product of all others, which come before and behind it.
struct ProdRule {
  Saved x;
  Reduction over;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (g.view.numel() == 0) return;
      const Tensor rows = with_reduced_last(x.get(), over);
      const Tensor before = products_before(rows, 1);
      const Tensor behind = products_before(in_order(rows, 1, true), 1);
      // Back where x has them.
      const Dims order = over.reduced_last();
      Shape shape = g.view.shape;
      for (int i = 0; i < order.size(); ++i) shape[i] = g.view.size(static_cast<int>(order[i]));
      Dims inverse = order;
      for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
      pointwise_kernel(Target::write_to(before), Pointwise::mul,
                       {before, in_order(behind, 1, true)});
      pointwise_kernel(g, Pointwise::mul,
                       {over.keep(d_o), before.detach().view(shape).permute(inverse)});
    });
  }
};

struct CumExtremeRule {
  Saved index;
  int axis;
  void backward(const Tensor& d_o, Grads& d) const {
    d.with(0, [&](const Grad& g) {
      if (g.view.numel() == 0) return;
      if (!g.add) fill_kernel(g.view, 0);
      scatter_add_kernel(g.view, index, d_o, axis);
    });
  }
};

Extremes running_extreme(const Tensor& x, int dim, bool reverse, bool largest) {
  if (x.dim() == 0) {
    const Extremes one = running_extreme(x.reshape({1}), dim, reverse, largest);
    return {one.values.reshape({}), one.index.reshape({})};
  }
  const int axis = wrap_dim(dim, x.dim());
  const std::int64_t n = x.size(axis);
  Tensor values = empty(x.shape(), x.dtype(), x.device()),
         index = empty(x.shape(), i64, x.device());
  if (x.numel() == 0) return {tie(values, {x}, CumExtremeRule{{}, axis}), no_gradient(index)};
  copy_kernel(values, x);
  const Tensor positions = arange(n, i64, x.device());
  Shape along = Dims::filled(x.dim(), 1);
  along[axis] = n;
  pointwise_kernel(Target::write_to(index), Pointwise::copy, {positions.view(along)});
  const Tensor made_values = values, made_index = index;  // the others are workspace
  Tensor next_values = workspace(x.shape(), x.dtype(), x.device()),
         next_index = workspace(x.shape(), i64, x.device());
  for (std::int64_t distance = 1; distance < n; distance *= 2) {
    const std::int64_t rest = n - distance;
    const auto later = [&](const Tensor& t) {
      return part_of(in_order(t, axis, reverse), axis, distance, rest);
    };
    const auto earlier = [&](const Tensor& t) {
      return part_of(in_order(t, axis, reverse), axis, 0, rest);
    };
    // The later one takes over where it is better, or the first NaN.
    const Tensor takes = workspace(later(values).shape, boolean, x.device());
    const Tensor is_nan = workspace(later(values).shape, boolean, x.device());
    pointwise_kernel(Target::write_to(takes), largest ? Pointwise::gt : Pointwise::lt,
                     {later(values), earlier(values)});
    pointwise_kernel(Target::write_to(is_nan), Pointwise::isnan, {earlier(values)});
    pointwise_kernel(Target::write_to(is_nan), Pointwise::logical_not, {is_nan});
    const Tensor fresh_nan = workspace(later(values).shape, boolean, x.device());
    pointwise_kernel(Target::write_to(fresh_nan), Pointwise::isnan, {later(values)});
    pointwise_kernel(Target::write_to(fresh_nan), Pointwise::logical_and, {fresh_nan, is_nan});
    pointwise_kernel(Target::write_to(takes), Pointwise::logical_or, {takes, fresh_nan});
    const auto step = [&](Tensor& now, Tensor& next) {
      const View head = in_order(next, axis, reverse);
      copy_kernel(part_of(head, axis, 0, distance),
                  part_of(in_order(now, axis, reverse), axis, 0, distance));
      pointwise_kernel(Target::write_to(later(next)), Pointwise::where,
                       {takes, later(now), earlier(now)});
    };
    step(values, next_values);
    step(index, next_index);
    std::swap(values, next_values);
    std::swap(index, next_index);
  }
  if (!values.same_as(made_values)) {
    copy_kernel(made_values, values);
    copy_kernel(made_index, index);
    values = made_values, index = made_index;
  }
  index = no_gradient(index);
  return {tie(values, {x}, CumExtremeRule{save_if(x.requires_grad(), index), axis}), index};
}

}  // namespace

Tensor prod(const Tensor& x, const Axes& axes, bool keepdim) {
  const OpScope op("prod");
  const Reduction over(x.shape(), axes, keepdim);
  const Tensor o = empty(over.result, sum_dtype(x.dtype()), x.device());
  if (over.count == 0 || o.numel() == 0) {
    fill_kernel(o, 1);
    return tie(o, {x}, ProdRule{save_if(x.requires_grad(), x), over});
  }
  // Halves are multiplied by each other until one entry is left of each line.
  const Tensor rows = with_reduced_last(x, over);
  const Tensor factors = wide_copy(rows);
  for (std::int64_t n = over.count; n > 1; n = (n + 1) / 2) {
    const View front = part_of(factors, 1, 0, n / 2),
               back = part_of(factors, 1, (n + 1) / 2, n / 2);
    pointwise_kernel(Target::write_to(front), Pointwise::mul, {front, back});
  }
  View first = part_of(factors, 1, 0, 1), to = o;
  to.shape = first.shape, to.strides = Dims{1, 1};
  copy_kernel(to, first);
  return tie(o, {x}, ProdRule{save_if(x.requires_grad(), x), over});
}

Tensor cumsum(const Tensor& x, int dim, bool reverse, bool exclusive) {
  const OpScope op("cumsum");
  if (x.dim() == 0) return cumsum(x.reshape({1}), dim, reverse, exclusive).reshape({});
  const int axis = wrap_dim(dim, x.dim());
  const Tensor o = empty(x.shape(), sum_dtype(x.dtype()), x.device());
  sum_along(x, Target::write_to(o), axis, reverse, exclusive);
  return tie(o, {x}, CumsumRule{axis, reverse, exclusive});
}

Tensor cumprod(const Tensor& x, int dim, bool reverse, bool exclusive) {
  const OpScope op("cumprod");
  if (x.dim() == 0) return cumprod(x.reshape({1}), dim, reverse, exclusive).reshape({});
  const int axis = wrap_dim(dim, x.dim());
  const Tensor o = empty(x.shape(), sum_dtype(x.dtype()), x.device());
  const View in = in_order(x, axis, reverse);
  copy_kernel(in_order(o, axis, reverse),
              exclusive ? products_before(in, axis) : products_of(in, axis));
  return tie(o, {x}, CumprodRule{save_if(x.requires_grad(), x), axis, reverse, exclusive});
}

Extremes cummax(const Tensor& x, int dim, bool reverse) {
  const OpScope op("cummax");
  return running_extreme(x, dim, reverse, true);
}

Extremes cummin(const Tensor& x, int dim, bool reverse) {
  const OpScope op("cummin");
  return running_extreme(x, dim, reverse, false);
}

}  // namespace quipu
