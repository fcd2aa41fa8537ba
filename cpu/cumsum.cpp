// Running sums. Lines along the axis are independent and cut between threads; each is summed in one
// pass, in f64 (whole numbers: i64, wrapping), and rounded once when stored. Lines that lie side by
// side go together, a row at a time, so memory is read and written once in long stretches; that
// bounds it.
#include "axis_plan.h"
#include "quipu/core/threads/parallel.h"
#include "quipu/cpu/simd/convert.h"
#include "quipu/cpu/simd/wrapping.h"
#include "quipu/ops/reduce/kernels.h"

namespace quipu::detail {
namespace on_cpu {
namespace {

constexpr std::int64_t tile = 512;

template <class T>
void running_sums(const View& x, const Target& o, int axis, bool reverse) {
  const AxisPlan<2> plan({&x, &o.view}, axis, tile);
  const std::int64_t sign = reverse ? -1 : 1, first = reverse ? plan.length - 1 : 0;
  const std::int64_t x_step = sign * plan.axis_stride[0], o_step = sign * plan.axis_stride[1];
  const auto put_run = o.add ? add_run<T> : store_run<T>;
  const auto group = [&](const AxisPlan<2>::Group& g) {
    std::int64_t x_at = g.offsets[0] + first * plan.axis_stride[0];
    std::int64_t o_at = g.offsets[1] + first * plan.axis_stride[1];
    T values[tile], sums[tile] = {};
    if (plan.softmax_over_sequence()) {
      for (std::int64_t k = 0; k < plan.length; ++k, x_at += x_step, o_at += o_step) {
        load_run(values, at(x, x_at), x.dtype, plan.column_stride[0], g.width);
        for (std::int64_t i = 0; i < g.width; ++i)
          values[i] = sums[i] = wrapping_sum(sums[i], values[i]);
        put_run(at(o.view, o_at), o.view.dtype, plan.column_stride[1], values, g.width);
      }
      return;
    }
    for (std::int64_t k = 0; k < plan.length; k += tile) {
      const std::int64_t n = std::min(tile, plan.length - k);
      load_run(values, at(x, x_at + k * x_step), x.dtype, x_step, n);
      for (std::int64_t i = 0; i < n; ++i) values[i] = sums[0] = wrapping_sum(sums[0], values[i]);
      put_run(at(o.view, o_at + k * o_step), o.view.dtype, o_step, values, n);
    }
  };
  const std::int64_t lines = plan.softmax_over_sequence() ? tile : 1;
  const std::int64_t grain =
      std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, lines * plan.length));
  parallel_for(plan.groups(), grain,
               [&](std::int64_t begin, std::int64_t end) { plan.each(begin, end, group); });
}

void cumsum(View x, Target o, int axis, bool reverse) {
  if (x.numel() == 0) return;
  (is_floating(x.dtype) ? running_sums<double> : running_sums<std::int64_t>)(x, o, axis, reverse);
}

}  // namespace
}  // namespace on_cpu

void register_cpu_cumsum() {
  cumsum_kernel.provide(Variant::cpu, on_cpu::cumsum);
}

}  // namespace quipu::detail
