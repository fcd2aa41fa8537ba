#include "quipu/ops/index/find.h"

#include <algorithm>

#include "quipu/autograd/knot.h"
#include "quipu/ops/checks.h"
#include "quipu/ops/index/gather.h"
#include "quipu/ops/index/sort.h"
#include "quipu/ops/join.h"
#include "quipu/ops/pointwise/arithmetic.h"
#include "quipu/ops/pointwise/compare.h"
#include "quipu/ops/reduce/reduce.h"
#include "quipu/ops/reduce/scan.h"

namespace quipu {
using namespace detail;
namespace {

void check_has_values(const Tensor& x) {
  check(!x.device().is_meta(), "the shape of the result depends on values, which ", x.device(),
        " does not have");
}

/// Positions in a dense tensor of entries that hold.
Tensor places_of(const Tensor& mask) {
  const Tensor flat = mask.flatten();
  const std::int64_t n = flat.numel();
  const Tensor count = cumsum(flat, 0);
  const std::int64_t found = n == 0 ? 0 : count.select(0, n - 1).item_int();
  // Each goes to its number; what does not hold goes behind all of them.
  const Tensor to = where(flat, count - 1, full({}, found, i64, mask.device()).expand({n}));
  const Tensor places = zeros({found + 1}, i64, mask.device());
  return scatter(places, 0, to, arange(n, i64, mask.device())).slice(0, 0, found);
}

}  // namespace

Tensor nonzero(const Tensor& x) {
  const OpScope op("nonzero");
  check_has_values(x);
  const NoGrad no_grad;
  const Tensor places = places_of(x.dtype() == boolean ? x : ne(x, 0));
  const Tensor o = empty({places.numel(), x.dim()}, i64, x.device());
  Tensor left = places;
  for (int d = x.dim(); d-- > 0;) {
    const std::int64_t size = std::max<std::int64_t>(x.size(d), 1);
    const Tensor here = remainder(left, size);
    o.select(1, d).copy_from(here);
    if (d > 0)
      left = div((left - here).to(f64), static_cast<double>(size)).to(i64);  // exact below 2^53
  }
  return no_gradient(o);
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  const OpScope op("masked_select");
  check_bool("mask", mask);
  check(mask.shape() == x.shape(), "mask has shape ", mask.shape(), ", but x has shape ",
        x.shape());
  check_same_device("x", x, "mask", mask);
  check_has_values(x);
  const Tensor places = [&] {
    const NoGrad no_grad;
    return places_of(mask);
  }();
  return index_select(x.flatten(), 0, places);
}

Tensor bincount(const Tensor& x, const Tensor& weights, std::int64_t least) {
  const OpScope op("bincount");
  check_index("x", x);
  check_has_values(x);
  check(least >= 0, "least is ", least);
  if (weights.defined()) {
    check_same_device("x", x, "weights", weights);
    check(weights.shape() == x.shape(), "weights has shape ", weights.shape(), ", but x has shape ",
          x.shape());
  }
  const Tensor flat = x.flatten();
  std::int64_t size = least;
  if (flat.numel() > 0) {
    check(min(flat).item_int() >= 0, "x has the number ", min(flat).item_int(), " below 0");
    size = std::max(least, max(flat).item_int() + 1);
  }
  const Tensor added = weights.defined() ? weights.flatten() : ones(flat.shape(), i64, x.device());
  return scatter_add(zeros({size}, added.dtype(), x.device()), 0, flat, added);
}

Unique unique(const Tensor& x) {
  const OpScope op("unique");
  check_has_values(x);
  const NoGrad no_grad;
  const std::int64_t n = x.numel();
  if (n == 0) {
    return {empty({0}, x.dtype(), x.device()), empty(x.shape(), i64, x.device()),
            empty({0}, i64, x.device())};
  }
  const Sorted sorted = sort(x.detach().flatten(), 0);
  // An entry begins a run where it differs from the one before; all NaN are one.
  const Tensor before = sorted.values.slice(0, 0, n - 1), here = sorted.values.slice(0, 1);
  const Tensor differs = logical_and(ne(before, here), logical_not(isnan(before)));
  const Tensor begins = cat({full({1}, true, boolean, x.device()), differs});
  const Tensor number = cumsum(begins, 0) - 1;  // of the run that an entry is in
  const Tensor starts = places_of(begins);
  const Tensor inverse = scatter(zeros({n}, i64, x.device()), 0, sorted.indices, number);
  return {index_select(sorted.values, 0, starts), inverse.view(x.shape()),
          bincount(number, {}, starts.numel())};
}

Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right) {
  const OpScope op("searchsorted");
  check_same_device("sorted", sorted, "values", values);
  check_same_dtype("sorted", sorted, "values", values);
  check(sorted.dim() > 0, "sorted has no dimension");
  const bool lines = sorted.dim() > 1;
  if (lines) {
    Shape rows = sorted.shape();
    rows[rows.size() - 1] = values.dim() > 0 ? values.shape().back() : 1;
    check(values.shape() == rows, "values has shape ", values.shape(), ", but sorted has shape ",
          sorted.shape(), " (all dimensions but the last must agree)");
  }
  const NoGrad no_grad;
  const std::int64_t n = sorted.shape().back();
  const Tensor wanted = lines ? values.detach() : values.detach().flatten();
  // The answer lies in [low, low + left]; each look halves what is left.
  Tensor low = zeros(wanted.shape(), i64, values.device());
  for (std::int64_t left = n; left > 0 && wanted.numel() > 0; left /= 2) {
    const std::int64_t step = left - left / 2;
    const Tensor entry = gather(sorted.detach(), -1, low + (step - 1));
    // NaN is larger than all others, and equal to itself.
    const Tensor below =
        right ? isnan(wanted) : logical_and(isnan(wanted), logical_not(isnan(entry)));
    const Tensor behind = logical_or(right ? le(entry, wanted) : lt(entry, wanted), below);
    low = where(behind, low + step, low);
  }
  return no_gradient(lines ? low : low.view(values.shape()));
}

}  // namespace quipu
