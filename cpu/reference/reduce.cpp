// Along an axis: the largest or smallest entry, the k best of them, and running sums.
#include <algorithm>
#include <numeric>
#include <vector>

#include "quipu/cpu/reference/values.h"
#include "quipu/ops/index/top_k_kernels.h"
#include "quipu/ops/reduce/kernels.h"

namespace quipu::detail {
namespace reference {
namespace {

/// The first of the largest or smallest entries; NaN goes before all others.
void extreme(View x, View values, View index, int axis, bool largest) {
  const std::int64_t length = x.size(axis);
  if (x.numel() == 0) return;
  with_numbers_of(x.dtype, [&]<class T>(T) {
    const Numbers<T> entries = read_as<T>(with_axis_last(x, axis));
    Numbers<T> best(entries.size() / length);
    WholeArray where(best.size());
    for (std::int64_t line = 0; line < best.size(); ++line) {
      const auto entry = entries.segment(line * length, length);
      std::int64_t found = 0;
      for (std::int64_t i = 1; i < length && entry[found] == entry[found]; ++i) {
        const bool better = largest ? entry[i] > entry[found] : entry[i] < entry[found];
        if (better || entry[i] != entry[i]) found = i;
      }
      best[line] = entry[found];
      where[line] = found;
    }
    store(with_axis_last(values, axis), best);
    store(with_axis_last(index, axis), where);
  });
}

/// Best first, then by index; NaN is larger than everything.
void top_k(View x, View values, View indices, View, int axis, bool largest) {
  const std::int64_t length = x.size(axis), k = values.size(axis);
  with_numbers_of(x.dtype, [&]<class T>(T) {
    const Numbers<T> entries = read_as<T>(with_axis_last(x, axis));
    Numbers<T> best(values.numel());
    WholeArray where(best.size());
    for (std::int64_t line = 0; line * k < best.size(); ++line) {
      const auto entry = entries.segment(line * length, length);
      const auto less = [&](std::int64_t i, std::int64_t j) {
        return entry[i] < entry[j] || (entry[i] == entry[i] && entry[j] != entry[j]);
      };
      std::vector<std::int64_t> order(static_cast<std::size_t>(length));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
        return largest ? less(j, i) : less(i, j);
      });
      for (std::int64_t i = 0; i < k; ++i) {
        where[line * k + i] = order[static_cast<std::size_t>(i)];
        best[line * k + i] = entry[where[line * k + i]];
      }
    }
    store(with_axis_last(values, axis), best);
    store(with_axis_last(indices, axis), where);
  });
}

void cumsum(View x, Target o, int axis, bool reverse) {
  const std::int64_t length = x.size(axis);
  with_numbers_of(x.dtype, [&]<class T>(T) {
    Numbers<T> sums = read_as<T>(with_axis_last(x, axis));
    for (std::int64_t line = 0; line * length < sums.size(); ++line) {
      auto sum = sums.segment(line * length, length);
      for (std::int64_t i = 1; i < length; ++i) {
        const std::int64_t at = reverse ? length - 1 - i : i, before = reverse ? at + 1 : at - 1;
        sum[at] = plus(sum[before], sum[at]);
      }
    }
    store(with_axis_last(o, axis), sums);
  });
}

}  // namespace
}  // namespace reference

void register_reference_reduce() {
  extreme_kernel.provide(Variant::reference, reference::extreme);
  top_k_kernel.provide(Variant::reference, reference::top_k);
  cumsum_kernel.provide(Variant::reference, reference::cumsum);
}

}  // namespace quipu::detail
